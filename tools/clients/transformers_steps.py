"""Some steps of a small model of transformers under a DistributedConfig, what it generates, and whether it is the same after saving and
loading: as JSON, from rank 0.

    transformers_steps.py MODEL key=value…     as: transformers_steps.py llama tp_size=2 fsdp_size=2
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

STEPS, BATCH, SEQUENCE = 4, 4, 16
SMALL = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    pad_token_id=0, bos_token_id=1, eos_token_id=None, max_position_embeddings=64, tie_word_embeddings=False, dtype="float32",
)  # fmt: skip
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
OF_MODEL = {"qwen3_moe": EXPERTS, "mixtral": EXPERTS, "gemma2": dict(query_pre_attn_scalar=8, sliding_window=16)}


def filled(model):
    for number, (name, p) in enumerate(sorted(model.named_parameters())):
        drawn = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
        p.data.copy_(1 + 0.1 * drawn if "norm" in name else 0.1 * drawn)
    return model


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def main():
    name, options = sys.argv[1], {key: int(value) for key, value in (pair.split("=") for pair in sys.argv[2:])}
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    config = AutoConfig.for_model(name, **{**SMALL, **OF_MODEL.get(name, {})})
    if rank == 0:
        filled(AutoModelForCausalLM.from_config(config)).save_pretrained(folder[0])
    dist.barrier()
    distributed = {"distributed_config": DistributedConfig(**options)} if size > 1 else {}
    model = AutoModelForCausalLM.from_pretrained(folder[0], **distributed)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    batches = options.get("fsdp_size", 1)
    mine, rows = rank // options.get("tp_size", 1) % batches, BATCH // batches
    losses, times, counts = [], [], 0
    for step in range(STEPS):
        tokens = torch.randint(2, 64, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step))[mine * rows : (mine + 1) * rows]
        begin = time.perf_counter()
        with CommDebugMode() as comm:
            optimizer.zero_grad()
            loss = whole(model(input_ids=tokens, labels=tokens).loss)
            loss.backward()
            optimizer.step()
        times.append(time.perf_counter() - begin)
        counts = comm.get_total_counts()
        value = loss.detach().clone()
        if size > 1:
            dist.all_reduce(value)
        losses.append(value.item() / size)
    model.eval()
    prompt = torch.arange(2, 8).view(1, 6)
    with torch.no_grad():
        generated = model.generate(prompt, max_new_tokens=6, do_sample=False).tolist()
        logits = whole(model(input_ids=prompt).logits)
    saved = os.path.join(folder[0], "saved")
    model.save_pretrained(saved)
    dist.barrier()
    again = AutoModelForCausalLM.from_pretrained(saved).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=prompt).logits, logits, rtol=1e-4, atol=1e-4)
    if rank == 0:
        result = {"losses": losses, "generated": generated, "ms": 1000 * min(times), "collectives": counts}
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
