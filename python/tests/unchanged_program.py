"""A program of torch.distributed.tensor, as it is: test_drop_in.py runs it on meshtorch. It writes what it computed to the file it is given."""

import json
import os
import sys

import portable_script
import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
from torch.distributed._tensor import DTensor as OlderName
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module
from torch.distributed.tensor.placement_types import Shard


def shard_a_module():
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).double()
    parallelize_module(net, grid["tp"], {"0": ColwiseParallel(output_layouts=dt.Replicate())})
    fully_shard(net, mesh=grid["dp"])
    net(torch.ones(3, 8, dtype=torch.float64)).square().sum().backward()
    whole = get_model_state_dict(net)
    return {
        "is_fsdp": isinstance(net, FSDPModule) and not isinstance(net, FullyShardedDataParallel),
        "gradients": [p.grad.full_tensor().tolist() for p in net.parameters()],
        "states": {name: value.full_tensor().tolist() for name, value in whole.items()},
    }


def names():
    mesh = dist.init_device_mesh("cpu", (4,))
    tensor = torch.distributed.tensor.distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    return {
        "one_class": dt.DTensor is torch.distributed.tensor.DTensor is OlderName,
        "is_dtensor": isinstance(tensor, dt.DTensor),
        "is_mesh": isinstance(mesh, DeviceMesh) and DeviceMesh is dist.DeviceMesh,
        "is_style": issubclass(ColwiseParallel, ParallelStyle),
    }


def main():
    rank, folder, result = int(os.environ["RANK"]), *sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), 4), rank=rank, world_size=4)
    computed = {"script": portable_script.main(), "module": shard_a_module(), "names": names()}
    if rank == 0:
        with open(result, "w") as file:
            json.dump({"computed": computed, "made_by": type(init_device_mesh("cpu", (4,))).__module__}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
