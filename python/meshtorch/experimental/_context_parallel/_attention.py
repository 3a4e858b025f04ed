"""_ContextParallel: modules that call attention on plain shards of a sequence, made right for the whole of it."""

import threading
from enum import Enum

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils import _pytree as pytree

from ... import _C
from ..._dtensor import DTensor
from ...context_parallel import (
    _cp_options,
    _in_order_of,
    _RotateMethod,
    context_parallel,
    context_parallel_unshard,
    set_rotate_method,
)
from ...parallel.style import ParallelStyle
from ._cp_custom_ops import flex_cp_allgather
from ._load_balancer import _HeadTailLoadBalancer


class _CausalBehavior(Enum):
    """What is computed of the keys of one rank."""

    SKIP = None
    NOT_IS_CAUSAL = False
    IS_CAUSAL = True


def _is_causal_behavior(rank, world_size, i, is_causal):
    """What `rank` computes of the block of keys that reaches it in step i of the ring: that of rank - i.

    In balanced order none is hidden: of another rank's, either all queries see its front, or half of them all of it.
    """
    if not is_causal:
        return _CausalBehavior.NOT_IS_CAUSAL
    if i == 0:
        return _CausalBehavior.IS_CAUSAL
    is_seen = _cp_options.enable_load_balance or (rank - i) % world_size < rank
    return _CausalBehavior.NOT_IS_CAUSAL if is_seen else _CausalBehavior.SKIP


_open_scopes = threading.local()  # of the modules that run, by their id


def _enable_context_parallel_dispatcher():
    """From now on modules with the style take causal sequences as _cp_options say: in balanced order by default."""
    _cp_options.styles_balance = True


def _disable_context_parallel_dispatcher():
    """From now on sequences are in their natural order."""
    _cp_options.styles_balance = False


class _ContextParallel(ParallelStyle):
    """For a module whose forward is attention: forward(query, key, value, …), of this rank's part of the sequence."""

    class AttentionType(Enum):
        FLEX = "flex_attention"
        SDPA = "scaled_dot_product_attention"

    def __init__(self, seq_dim, attention_type):
        self.seq_dim, self.attention_type = seq_dim, self.AttentionType(attention_type)

    def _apply(self, module, device_mesh):
        if self.attention_type is self.AttentionType.FLEX:
            module.register_forward_pre_hook(_OnMesh(self.flex_input_fn, device_mesh), with_kwargs=True)
            return module
        module.register_forward_pre_hook(_OnMesh(self._enter, device_mesh), with_kwargs=True)
        module.register_forward_hook(_OnMesh(self._leave, device_mesh), always_call=True)
        return module

    def flex_input_fn(self, module, args, kwargs, mesh):
        """Keys and values of all ranks for the queries of this one; the block mask is of _context_parallel_shard."""
        given = dict(zip(("query", "key", "value"), args)) | kwargs
        gathered = flex_cp_allgather(given["key"], given["value"], self.seq_dim, mesh.get_group())
        by_name = dict(zip(("key", "value"), gathered))
        by_place = [by_name.get(name, arg) for name, arg in zip(("query", "key", "value"), args)]
        return (*by_place, *args[3:]), {name: by_name.get(name, value) for name, value in kwargs.items()}

    def sdpa_input_fn(self, module, args, kwargs, mesh):
        """The tensors as distributed ones, on which scaled_dot_product_attention is right by itself."""
        placements = (_C.Shard(self.seq_dim),)

        def distributed(value):
            if not isinstance(value, torch.Tensor):
                return value
            if not isinstance(value, DTensor):
                return DTensor.from_local(value, mesh, placements)
            if value.placements != placements:
                raise ValueError(
                    f"meshtorch: the style _ContextParallel got a tensor that is distributed as {value.placements}, "
                    f"not as {placements}\n  do: redistribute it before the module"
                )
            return value

        return tuple(map(distributed, args)), {name: distributed(value) for name, value in kwargs.items()}

    def sdpa_output_fn(self, module, inputs, outputs, mesh):
        """The shards again."""
        return pytree.tree_map(lambda value: value.to_local() if isinstance(value, DTensor) else value, outputs)

    def _enter(self, module, args, kwargs, mesh):
        if not isinstance(_cp_options.load_balancer, _HeadTailLoadBalancer | None):
            raise ValueError(
                "meshtorch: scaled_dot_product_attention knows a sequence in its natural order or in that of "
                f"_HeadTailLoadBalancer, and inputs were split by {type(_cp_options.load_balancer).__name__}\n  do: use "
                "flex_attention and AttentionType.FLEX, or another balancer"
            )
        changed = self.sdpa_input_fn(module, args, kwargs, mesh)
        balanced = _cp_options.styles_balance and _cp_options.enable_load_balance
        scope = _C.OpenContextParallel(mesh, [], [], balanced, [])
        vars(_open_scopes).setdefault(id(module), []).append(scope)
        return changed

    def _leave(self, module, inputs, outputs, mesh):
        scopes = vars(_open_scopes).get(id(module))
        if scopes:  # none if an input was refused
            scopes.pop().close()
        return self.sdpa_output_fn(module, inputs, outputs, mesh)


class _OnMesh:
    """A hook that is told the mesh; unlike a closure it can be copied with its module."""

    def __init__(self, function, mesh):
        self._function, self._mesh = function, mesh

    def __call__(self, *args):
        return self._function(*args, self._mesh)


def _create_cp_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device_mesh, load_balancer=None):
    """The BlockMask of this rank's queries and all keys, of a mask_mod of positions in the whole sequence."""
    ranks = device_mesh.size()
    if Q_LEN % ranks:
        raise NotImplementedError(
            f"meshtorch: a block mask of {Q_LEN} queries cannot be split over {ranks} ranks evenly"
            "\n  do: pad the sequence"
        )
    if load_balancer is None and _cp_options.enable_load_balance:
        load_balancer = _HeadTailLoadBalancer(Q_LEN, ranks, device_mesh.device_type)
    order = None if load_balancer is None else load_balancer._generate_indices()
    mine = Q_LEN // ranks * device_mesh.get_local_rank()

    def position(sample, place):
        if order is None:
            return place
        return order[0][place] if len(order) == 1 else order[sample, place]

    def of_shards(b, h, q_idx, kv_idx):
        return mask_mod(b, h, position(b, q_idx + mine), position(b, kv_idx))

    return create_block_mask(of_shards, B, H, Q_LEN // ranks, KV_LEN, device=device_mesh.device_type)


def _shard_of(buffer, dim, mesh, load_balancer):
    if isinstance(buffer, BlockMask):
        samples, heads = buffer.kv_num_blocks.shape[:2]
        return _create_cp_block_mask(buffer.mask_mod, samples, heads, *buffer.seq_lengths, mesh, load_balancer)
    if load_balancer is not None:
        buffer = _in_order_of(load_balancer._generate_indices(), buffer, dim)
    return _C.distribute_tensor(buffer, mesh, [_C.Shard(dim)], src_data_rank=None).to_local()


def _context_parallel_shard(mesh, buffers, seq_dims, load_balancer=None):
    """This rank's part of each buffer, a tensor or a BlockMask, in the order of the balancer: for _ContextParallel.

    Attention with the style takes sequences in that order from now on; scaled_dot_product_attention knows that of
    _HeadTailLoadBalancer.
    """
    flat, structure = pytree.tree_flatten(buffers)
    dims = pytree.tree_leaves(seq_dims)
    if len(flat) != len(dims):
        raise ValueError(
            f"meshtorch: _context_parallel_shard got {len(flat)} buffers and {len(dims)} sequence dims"
            "\n  do: give one dim for each buffer"
        )
    _cp_options.enable_load_balance, _cp_options.load_balancer = load_balancer is not None, load_balancer
    parts = [_shard_of(buffer, dim, mesh, load_balancer) for buffer, dim in zip(flat, dims)]
    return pytree.tree_unflatten(parts, structure)
