"""Some steps of a small model of torchtitan, with its parallelisms, losses, clipping and optimisers: what it computed, as JSON, from rank 0.

    titan.py MODEL key=value…     as: titan.py llama3 tp=2 ac=selective

It imports torch.distributed.tensor as torchtitan does; `python -m meshtorch run` puts meshtorch there.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist



def load_kernels_without_triton():
    """torchtitan's module of kernels for GPUs, which imports triton; what it has for a CPU needs none."""
    stub = types.ModuleType("triton")
    stub.jit, stub.language = (lambda function: function), types.ModuleType("triton.language")
    stub.language.constexpr = int
    sys.modules.update({"triton": stub, "triton.language": stub.language})
    name = "torchtitan.models.moe.kernels"
    folder = importlib.util.find_spec("torchtitan").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "models", "moe", "kernels.py"))
    kernels = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    del sys.modules["triton"], sys.modules["triton.language"]
    kernels.fill_indices_wrapper = kernels.fill_indices_cpu


if importlib.util.find_spec("triton") is None:
    load_kernels_without_triton()
torch._utils._get_available_device_type = lambda: "cpu"  # torchtitan takes a machine without an accelerator for one with CUDA
plain_histc = torch.histc
torch.histc = lambda x, **bins: plain_histc(x.float(), **bins).to(x.dtype)  # which counts whole numbers on CUDA alone

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.protocols.train_spec import get_train_spec  # noqa: E402

SEQUENCE, BATCH, STEPS = 32, 4, 4
SMALL = {
    "llama3": dict(dim=64, n_layers=2, n_heads=4, vocab_size=96),
    "qwen3": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=96, vocab_size=96, enable_weight_tying=False),
    "qwen3_moe": dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=96, moe_inter_dim=32, vocab_size=96),
    "deepseek_v3": dict(
        dim=64, inter_dim=96, moe_inter_dim=32, n_layers=2, n_heads=4, vocab_size=96, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16,
    ),
}  # fmt: skip


def model_of(name, config):
    spec = get_train_spec(name.removesuffix("_moe"))
    flavor = "debugmodel_moe" if name.endswith("_moe") else "debugmodel"
    args = dataclasses.replace(spec.model_args[flavor], **SMALL[name])
    if getattr(args, "moe_args", None) is not None:
        args.moe_args = dataclasses.replace(args.moe_args, num_experts=8, top_k=2, use_grouped_mm=False)
    args.max_seq_len = SEQUENCE
    args.update_from_config(config)
    return spec, args


def values_of(model):
    """Numbers for each tensor by its name alone, the same in every configuration."""
    values = {}
    for number, (name, tensor) in enumerate(sorted(model.state_dict().items())):
        if not tensor.is_floating_point():
            values[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
            continue
        drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number))
        values[name] = (1 + 0.1 * drawn if "norm" in name else 0.05 * drawn).to(tensor.dtype)
    return values


def job(options):
    config = JobConfig()
    config.training.seq_len, config.training.local_batch_size = SEQUENCE, BATCH
    config.training.mixed_precision_param = options.get("dtype", "float32")
    config.parallelism.disable_loss_parallel = options.get("loss_parallel") == "off"
    config.parallelism.context_parallel_degree = int(options.get("cp", 1))
    config.activation_checkpoint.mode = options.get("ac", "none")
    config.optimizer.lr, config.optimizer.eps = 1e-2, 1e-4
    config.optimizer.implementation = "foreach"
    config.checkpoint.enable, config.checkpoint.interval = "checkpoint" in options, 1
    config.checkpoint.async_mode = options.get("checkpoint", "disabled")
    return config


class Position:
    """Where the data loader is, as torchtitan's checkpoints have it."""

    def state_dict(self):
        return {"step": STEPS}

    def load_state_dict(self, state):
        assert state == {"step": STEPS}, state


def local_values(model, optimizers):
    return {name: (t.to_local() if isinstance(t, DTensor) else t).clone()
            for name, t in {**get_model_state_dict(model), **optimizers.state_dict()}.items() if isinstance(t, torch.Tensor)}  # fmt: skip


def expect_same_after_loading(model, optimizers, schedulers, config):
    """By torchtitan's CheckpointManager: the weights and the state of the optimiser are as they were."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    manager = CheckpointManager(Position(), [model], optimizers, schedulers, {}, config.checkpoint, None, folder[0])
    before = local_values(model, optimizers)
    manager.save(STEPS)
    if manager.save_future is not None:
        manager.save_future.result()
    dist.barrier()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert manager.load(STEPS)
    after = local_values(model, optimizers)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name
    manager.close()


def main():
    model_name, options = sys.argv[1], dict(pair.split("=") for pair in sys.argv[2:])
    degree = {key: int(options.get(key, 1)) for key in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp")}
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    config = job(options)
    dims = ParallelDims(**degree, world_size=dist.get_world_size())
    dims.build_mesh()
    spec, args = model_of(model_name, config)
    with torch.device("meta"):
        model = spec.model_cls(args)
    values = values_of(model)
    model = spec.parallelize_fn(model, dims, config)
    for part in model.modules():
        if isinstance(part, FSDPModule):  # gloo has no product with a sum
            part.set_force_sum_reduction_for_comms(True)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    set_model_state_dict(model, values, options=StateDictOptions(full_state_dict=True, strict=False))
    model.train()
    optimizers = spec.build_optimizers_fn([model], config.optimizer, dims)
    schedulers = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, STEPS)
    loss_fn = spec.build_loss_fn(config, parallel_dims=dims)
    context = dist_utils.get_train_context(dims.tp_enabled and not config.parallelism.disable_loss_parallel)
    batches, mine = degree["dp_replicate"] * degree["dp_shard"], 0
    if batches > 1:
        mine = dims.get_mesh("batch").get_local_rank()
    rows = BATCH // batches
    losses, norms, times, counts = [], [], [], 0
    for step in range(STEPS):
        tokens = torch.randint(96, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(step))[mine * rows : (mine + 1) * rows]
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        begin = time.perf_counter()
        with CommDebugMode() as comm:
            optimizers.zero_grad()
            extra = {}
            cp_context = None
            if dims.cp_enabled:
                from torchtitan.distributed.context_parallel import prepare_context_parallel_input

                inputs, labels, extra = prepare_context_parallel_input(
                    inputs, labels, extra, dims.get_mesh("cp"), torch.device("cpu"), config.parallelism.context_parallel_load_balancer
                )
            with context(cp_context) if cp_context is not None else context():
                loss = loss_fn(model(inputs, **extra), labels)
                loss = loss / labels.numel()  # a sum over tokens
                # torchtitan has its sharded gradients added up, not averaged, since its losses are divided by all tokens
                (loss / (batches * degree["cp"]) if degree["dp_shard"] * degree["cp"] > 1 else loss).backward()
            norm = dist_utils.clip_grad_norm_(
                list(model.parameters()), 1.0, foreach=True, ep_enabled=dims.ep_enabled,
            )  # fmt: skip
            optimizers.step()
            schedulers.step()
        times.append(time.perf_counter() - begin)
        counts = comm.get_total_counts()
        value = loss.detach()
        value = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
        if batches * degree["cp"] > 1:
            dist.all_reduce(value, group=dims.get_mesh("loss").get_group())
            value /= batches * degree["cp"]
        losses.append(value.item())
        norms.append(norm.item())
    if options.get("checkpoint"):
        expect_same_after_loading(model, optimizers, schedulers, config)
    if dist.get_rank() == 0:
        result = {"losses": losses, "norms": norms, "ms": 1000 * min(times), "collectives": counts}
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
