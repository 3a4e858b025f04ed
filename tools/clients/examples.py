"""Runs a program of pytorch/examples, made for GPUs, on ranks of a CPU: the losses that it passes to backward(), as JSON, from rank 0.

    examples.py PROGRAM [again] [argument]…     as: examples.py FSDP2/example.py again --dcp-api

PROGRAM lies in the folder `distributed` of a checkout, which EXAMPLES names. `again` runs it twice, so that it loads what it saved.
"""

import contextlib
import json
import os
import runpy
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist
from counting import counting
from torch.distributed.tensor import DTensor, distribute_tensor

SMALL = {  # minGPT-ddp, of which hydra would read the settings
    "data_config": {"block_size": 16, "train_split": 0.9, "truncate": 0.0008},
    "gpt_config": {"n_layer": 2, "n_head": 2, "n_embd": 32, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0},
    "trainer_config": {"max_epochs": 1, "batch_size": 16, "data_loader_workers": 0, "grad_norm_clip": 1.0, "save_every": 1, "use_amp": False},
    "optimizer_config": {"weight_decay": 0.1, "learning_rate": 3e-4},
}


def take_the_cpu_for_an_accelerator():
    torch.accelerator.is_available = lambda: True
    torch.accelerator.device_count = lambda: 8
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    torch.accelerator.device_index = lambda index: contextlib.nullcontext()
    torch.accelerator.set_device_index = lambda index: None
    plain_init = dist.init_process_group
    dist.init_process_group = torch.distributed.init_process_group = lambda backend=None, device_id=None, **options: plain_init("gloo", **options)
    os.environ["LOCAL_RANK"] = "0"
    for cls in (torch.Tensor, torch.nn.Module):  # .to(0) is a GPU
        cls.to = lambda self, *to, plain=cls.to, **options: self if to == (0,) else plain(self, *to, **options)
    plain_loader = torch.utils.data.DataLoader.__init__
    torch.utils.data.DataLoader.__init__ = lambda self, *args, pin_memory=False, **options: plain_loader(self, *args, **options)
    plain_replicated = torch.nn.parallel.DistributedDataParallel.__init__
    torch.nn.parallel.DistributedDataParallel.__init__ = lambda self, module, device_ids=None, **options: plain_replicated(self, module, **options)


def draw_by_number():
    """Parameters are filled by their place in the order, so that ranks, and PyTorch and meshtorch, draw alike."""
    drawn = iter(range(10**6))

    def fill(tensor, *_, **__):
        value = 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(next(drawn)))
        with torch.no_grad():
            tensor.copy_(distribute_tensor(value, tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else value)
        return tensor

    def filled(self, *args, **options):
        plain_to_empty(self, *args, **options)
        for p in self.parameters():
            fill(p)
        return self

    for name in ("kaiming_uniform_", "uniform_", "normal_", "trunc_normal_"):
        setattr(torch.nn.init, name, fill)
    plain_to_empty, torch.nn.Module.to_empty = torch.nn.Module.to_empty, filled  # FSDP2/model.py leaves its layers so


def stand_in_for_hydra():
    def main(**_):
        settings = {**SMALL, "data_config": {**SMALL["data_config"], "path": os.path.join(sys.path[0], "data", "input.txt")}}
        return lambda function: lambda: function(settings)

    for name in ("hydra", "boto3", "omegaconf"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["hydra"].main, sys.modules["omegaconf"].DictConfig = main, dict


class Record:
    """The losses of the program, when they came, and how many collectives there were by then."""

    def __init__(self):
        self.losses, self.times, self.counts, self.comm = [], [], [], counting()
        plain = torch.Tensor.backward

        def backward(loss, *args, **kwargs):
            value = loss.detach()
            self.times.append(time.perf_counter())
            self.counts.append(self.comm.get_total_counts())
            plain(loss, *args, **kwargs)
            self.losses.append((value.full_tensor() if isinstance(value, DTensor) else value).item())

        torch.Tensor.backward = backward

    def result(self):
        steps = [after - before for before, after in zip(self.times, self.times[1:])]
        return {"losses": self.losses, "ms": 1000 * min(steps), "collectives": self.counts[-1] - self.counts[-2]}


def main():
    program, arguments = os.path.join(os.environ["EXAMPLES"], "distributed", sys.argv[1]), sys.argv[2:]
    runs = 1 + ("again" in arguments)
    sys.argv = [program, *(argument for argument in arguments if argument != "again")]
    sys.path.insert(0, os.path.dirname(program))
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    take_the_cpu_for_an_accelerator()
    draw_by_number()
    stand_in_for_hydra()
    dist.init_process_group()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    os.chdir(folder[0])
    record = Record()
    ends, dist.destroy_process_group = dist.destroy_process_group, lambda: None
    first, dist.init_process_group = dist.init_process_group, lambda *_, **__: None
    with record.comm:
        for _ in range(runs):
            torch.manual_seed(0)
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
                runpy.run_path(program, run_name="__main__")
            dist.barrier()
    if rank == 0:
        print("RESULT " + json.dumps(record.result()), flush=True)
    dist.barrier()
    ends()
    os._exit(0)


if __name__ == "__main__":
    main()
