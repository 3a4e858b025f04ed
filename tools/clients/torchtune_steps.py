"""Some steps of a small llama3 of torchtune, sharded, split, gathered and loaded by its own functions: as JSON, from rank 0.

    torchtune_steps.py key=value…     as: torchtune_steps.py tp=2 dp=2
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from counting import counting
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torchtune import training
from torchtune.models.llama3 import base_llama_tp_plan, llama3

STEPS, BATCH, SEQUENCE, WORDS = 4, 4, 16, 64


def new_model():
    return llama3(vocab_size=WORDS, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32, max_seq_len=SEQUENCE, intermediate_dim=48)


def whole_state():
    """The same numbers in every configuration."""
    state = new_model().state_dict()
    for number, name in enumerate(sorted(state)):
        drawn = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(number))
        state[name] = 1 + 0.1 * drawn if "norm" in name or "scale" in name else 0.1 * drawn
    return state


def main():
    options = {key: int(value) for key, value in (pair.split("=") for pair in sys.argv[1:])}
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, size, tp, dp = dist.get_rank(), dist.get_world_size(), options.get("tp", 1), options.get("dp", 1)
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = new_model()
    if tp > 1:
        training.prepare_mha_for_tp(model, mesh["tp"])
        parallelize_module(model, mesh["tp"], base_llama_tp_plan())
    if dp > 1:
        shard_conditions = [lambda name, module: name.startswith("layers.") and name.count(".") == 1]
        training.shard_model(model, shard_conditions, cpu_offload=False, dp_mesh=mesh["dp"])
    device = torch.device("cpu")
    if size > 1:
        with device:
            for module in model.modules():
                if hasattr(module, "rope_init"):
                    module.rope_init()
        training.load_from_full_model_state_dict(model, whole_state(), device, strict=True)
    else:
        model = new_model()
        model.load_state_dict(whole_state())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    rows = BATCH // dp
    mine = rank // tp * rows
    losses, norms, times, counts = [], [], [], 0
    for step in range(STEPS):
        tokens = torch.randint(WORDS, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(step))[mine : mine + rows]
        begin = time.perf_counter()
        with counting() as comm:
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS).float(), tokens[:, 1:].reshape(-1))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        times.append(time.perf_counter() - begin)
        counts = comm.get_total_counts()
        value = loss.detach().clone()
        if size > 1:
            dist.all_reduce(value)
        losses.append(value.item() / size)
        norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
    if size > 1:
        gathered = training.gather_cpu_state_dict(model, rank == 0, device)
        shapes = {name: t.shape for name, t in gathered.items()}
        assert rank or shapes == {name: t.shape for name, t in new_model().state_dict().items()}, shapes
    if rank == 0:
        result = {"losses": losses, "norms": norms, "ms": 1000 * min(times), "collectives": counts}
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
