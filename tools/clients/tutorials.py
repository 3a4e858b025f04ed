"""What PyTorch's tutorials on distributed checkpoints, asynchronous saves and device meshes do, on a small model: as JSON, from rank 0.

    tutorials.py checkpoint | async_checkpoint | device_mesh
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 4


class AppState(Stateful):
    """Model and optimiser as one part of a checkpoint."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def sharded(mesh):
    model = new_model()
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, after_step=lambda step: None):
    losses, times = [], []
    for step in range(STEPS):
        x = torch.rand(8, 16, generator=torch.Generator().manual_seed(step)).chunk(dist.get_world_size())[dist.get_rank()]
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        after_step(step)
        times.append(time.perf_counter() - begin)
        value = loss.detach().clone()
        dist.all_reduce(value)
        losses.append(value.item() / dist.get_world_size())
    return losses, times


def checkpoint(folder):
    """Saved, loaded into another model, which goes on alike, and turned into a file of torch.save and back."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = sharded(mesh)
    train(model, optimizer)
    dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=folder)
    again, its_optimizer = sharded(mesh)
    dcp.load({"app": AppState(again, its_optimizer)}, checkpoint_id=folder)
    expected, _ = train(model, optimizer)
    losses, times = train(again, its_optimizer)
    assert losses == expected, (losses, expected)
    if dist.get_rank() == 0:
        dcp_to_torch_save(folder, folder + ".pt")
        torch_save_to_dcp(folder + ".pt", folder + "_new")
        plain = new_model()
        plain.load_state_dict(torch.load(folder + ".pt", weights_only=False)["app"]["model"])
    dist.barrier()
    return losses, times


def async_checkpoint(folder):
    """One save under way at a time, while the steps go on."""
    model, optimizer = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    under_way, group = [], dist.new_group(backend="gloo")  # steps go on in the group of all

    def save(step):
        if under_way:
            under_way.pop().result()
        under_way.append(dcp.async_save({"app": AppState(model, optimizer)}, checkpoint_id=f"{folder}_step{step}", process_group=group))

    losses, times = train(model, optimizer, save)
    under_way.pop().result()
    dist.barrier()
    again, its_optimizer = sharded(init_device_mesh("cpu", (dist.get_world_size(),)))
    dcp.load({"app": AppState(again, its_optimizer)}, checkpoint_id=f"{folder}_step{STEPS - 1}")
    assert train(again, its_optimizer)[0] == train(model, optimizer)[0]
    return losses, times


def device_mesh(_):
    """Groups along the axes of a mesh, and a model copied over one and sharded over the other."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    for axis in ("replicate", "shard"):
        value = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(value, group=mesh.get_group(mesh_dim=axis))
        assert value.item() == sum(dist.get_process_group_ranks(mesh[axis].get_group()))
    model, optimizer = sharded(mesh)
    return train(model, optimizer)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    losses, times = globals()[sys.argv[1]](os.path.join(folder[0], "checkpoint"))
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps({"losses": losses, "ms": 1000 * min(times), "collectives": None}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
