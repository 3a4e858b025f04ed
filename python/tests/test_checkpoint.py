"""torch.distributed.checkpoint of distributed tensors: saved in one layout, loaded in others."""

import tempfile

import meshtorch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.placement_types import _StridedShard


def shared_folder(w):
    names = [tempfile.mkdtemp() if w.rank == 0 else None]
    dist.broadcast_object_list(names)
    return names[0]


def save_and_load(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    value = torch.arange(70.0).view(7, 10)
    layouts = (
        [Shard(0), Shard(1)],
        [Shard(0), Shard(0)],
        [Replicate(), Shard(1)],
        [Replicate(), Replicate()],
        [_StridedShard(0, split_factor=2), Shard(0)],
    )
    for saved in layouts:
        folder = shared_folder(w)
        state = {"x": distribute_tensor(value, mesh, saved), "n": torch.tensor(3.0)}
        dcp.save(state, checkpoint_id=folder)
        for loaded in layouts:
            state = {"x": distribute_tensor(torch.zeros(7, 10), mesh, loaded), "n": torch.tensor(0.0)}
            dcp.load(state, checkpoint_id=folder)
            assert isinstance(state["x"], DTensor) and state["x"].placements == tuple(loaded)
            w.same(state["x"].full_tensor(), value)
            assert state["n"] == 3
        plain = {"x": torch.zeros(7, 10)}
        dcp.load(plain, checkpoint_id=folder)
        w.same(plain["x"], value)


def read_what_pytorch_wrote(w):
    from torch.distributed import device_mesh, tensor

    folder, value = shared_folder(w), torch.arange(30.0).view(5, 6)
    theirs = device_mesh.init_device_mesh("cpu", (4,))
    dcp.save({"x": tensor.distribute_tensor(value, theirs, [tensor.Shard(0)])}, checkpoint_id=folder)
    state = {"x": meshtorch.zeros(5, 6, device_mesh=w.mesh(), placements=[Shard(1)])}
    dcp.load(state, checkpoint_id=folder)
    w.same(state["x"].full_tensor(), value)


def refuse_pending_sums(w):
    x = DTensor.from_local(torch.ones(2, 2), w.mesh(), [Partial()])
    for ask in (x.__create_chunk_list__, lambda: x.__create_write_items__("x", x)):
        with pytest.raises(ValueError, match="Any checkpointing related operations are not supported for"):
            ask()
    assert not hasattr(torch.ones(2), "__create_chunk_list__")


def test_what_is_saved_in_one_layout_loads_in_any(gloo_ranks):
    gloo_ranks(save_and_load)


def test_checkpoints_of_pytorchs_dtensors_are_read(gloo_ranks):
    gloo_ranks(read_what_pytorch_wrote)


def test_a_pending_sum_is_no_checkpoint(gloo_ranks):
    gloo_ranks(refuse_pending_sums)
