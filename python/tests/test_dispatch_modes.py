"""Python's dispatch modes see each operator on distributed tensors once, and nothing of what the library does for it."""

import random
import sys
import warnings
from functools import partial
from pathlib import Path
from threading import Lock

import meshtorch
import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch import functional_collectives as funcol
from meshtorch.fsdp import fully_shard
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from worlds import filled, on_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import operator_database as database  # noqa: E402


class Recorder(TorchDispatchMode):
    """What a mode sees: operators, and of each of their tensors whether it is distributed and its shape."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        self.calls.append((str(function), *((isinstance(t, DTensor), tuple(t.shape)) for t in tensors)))
        return function(*args, **(kwargs or {}))

    def operators(self):
        return [name.removeprefix("aten.").split(".")[0] for name, *_ in self.calls]


def seen(call):
    with Recorder() as recorder:
        result = call()
    return recorder, result


@on_ranks
def test_a_mode_sees_the_operators_of_the_program(w):
    mesh = w.mesh()
    x = torch.arange(20.0).view(5, 4)
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = distribute_tensor(x, mesh, [placement])
        recorder, product = seen(lambda: d @ d.t())
        assert recorder.calls == [("aten.t.default", (True, (5, 4))), ("aten.mm.default", (True, (5, 4)), (True, (4, 5)))]
        w.same(product.full_tensor(), x @ x.t())
        recorder, _ = seen(lambda: d.add_(1).sum(0).relu())
        assert recorder.operators() == ["add_", "sum", "relu"]


@on_ranks
def test_a_mode_sees_nothing_of_conversions_and_collectives(w):
    mesh, x = w.mesh(), torch.arange(32.0).view(8, 4)

    def convert():
        d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        y = d.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
        DTensor.from_local(y.to_local(), mesh, [Partial()]).full_tensor()
        meshtorch.rand(8, 4, device_mesh=mesh)
        meshtorch.zeros(8, 4, device_mesh=mesh, placements=[Shard(0)])
        return funcol.wait_tensor(funcol.all_reduce(x, "sum", mesh))

    assert seen(convert)[0].operators() == []


class Doubling(TorchDispatchMode):
    """Answers a product in the place of the operator, and gives others another argument."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ops.aten.mm.default else result


@on_ranks
def test_modes_may_change_results_and_are_nested(w):
    mesh, x = w.mesh(), torch.arange(16.0).view(4, 4)
    d = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    with Doubling(), Doubling():
        product = torch.mm(d, d)
    w.same(product.full_tensor(), 4 * x @ x)
    with Recorder() as outer, Recorder() as inner:
        torch.mm(d, d).sum().backward()
    assert outer.calls == inner.calls and outer.operators().count("mm") == 3


_samples, _making = [], Lock()


def samples():
    """(operator, sample) of PyTorch's database, one for each operator, made once in a process: ranks that are threads share torch's generator."""
    from torch.testing._internal.common_methods_invocations import op_db

    with _making:
        for op in op_db if not _samples else ():
            if op.name not in database.DRAWN and op.name not in database.REFUSED:
                random.seed(op.full_name)  # some draw from it too
                of_op = [s for s in database.samples_of(op, 1, 1, None) if database.plain_run(op, s, False) is not None]
                _samples.extend((op, sample) for sample in of_op)
    return _samples


class Layouts(database.Layouts):
    """Those of the database, on one axis; the terms of a pending sum are made by themselves."""

    def place(self, tensor):
        placement = self._placement(tensor)
        terms = tensor.detach()
        if placement.is_partial():
            terms = terms if self.mesh.get_local_rank() == 0 else torch.zeros_like(terms)
        elif placement.is_shard():
            terms = distribute_tensor(terms, self.mesh, [placement], src_data_rank=None).to_local()
        return DTensor.from_local(terms, self.mesh, [placement], shape=tensor.shape, stride=tensor.stride())


def first_difference(one, other):
    changed = [pair for pair in zip(one, other) if pair[0] != pair[1]]
    return changed[0] if changed else f"{len(one)} and {len(other)} calls"


def repeat_operators(w):
    """Each operator of the database twice, with its gradient."""
    warnings.filterwarnings("ignore")
    differ = []
    for op, sample in samples():
        layouts = Layouts(w.mesh(), op.full_name)
        call = database.Call(op, sample, layouts.replace)

        def step():
            layouts.random.seed(op.full_name)
            return database.gradients(call(), call.leaves(), lambda g, of: layouts.place(g) if isinstance(of, DTensor) else g)

        records = [seen(step)[0].calls for _ in range(2)]
        if records[0] != records[1]:
            differ.append(f"{op.full_name}: {first_difference(*records)}")
    assert len(samples()) > 400 and not differ, f"{len(differ)} of {len(samples())}\n" + "\n".join(differ)


@pytest.mark.parametrize("kind", ["gloo", "threads"])
def test_a_mode_sees_the_same_when_an_operator_runs_again(kind, processes):
    import worlds

    worlds.run(kind, 2, repeat_operators, processes)


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def save_products(context, function, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if function in products else CheckpointPolicy.PREFER_RECOMPUTE


@on_ranks(size=2)
def test_selective_checkpoints_of_a_parallel_block(w):
    plain, block = filled(Block().double()), filled(Block().double())
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(block, w.mesh(names=("tp",)), plan)
    x = torch.linspace(-1, 1, 2 * w.size * 8, dtype=torch.float64).view(1, 2 * w.size, 8)
    contexts = partial(create_selective_checkpoint_contexts, save_products)
    for _ in range(3):
        for net, given in ((plain, x), (block, x.chunk(w.size, 1)[w.rank])):
            for p in net.parameters():
                p.grad = None
            y = net(given) if net is plain else checkpoint(net, given, use_reentrant=False, context_fn=contexts)
            y.square().sum().backward()
        for p, q in zip(block.parameters(), plain.parameters()):
            w.same(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-9)


@on_ranks(size=2)
def test_a_mode_sees_a_sharded_module_as_a_plain_one(w):
    plain, block = filled(Block().double()), filled(Block().double())
    fully_shard(block, mesh=w.mesh(names=("dp",)))
    x = torch.linspace(-1, 1, 4 * 8, dtype=torch.float64).view(1, 4, 8)
    contexts = partial(create_selective_checkpoint_contexts, save_products)
    counts = []
    for net in (plain, block):
        with Recorder() as recorder:
            y = checkpoint(net, x, use_reentrant=False, context_fn=contexts)
            y.square().sum().backward()
        counts.append(recorder.operators())
    assert counts[0] == counts[1]
    for p, q in zip(block.parameters(), plain.parameters()):
        w.same(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-9)
