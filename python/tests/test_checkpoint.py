"""torch.distributed.checkpoint of distributed tensors: saved in one layout, loaded in others."""

import copy
import tempfile

import meshtorch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.placement_types import _StridedShard
from worlds import on_gloo_ranks


def shared_folder(w):
    names = [tempfile.mkdtemp() if w.rank == 0 else None]
    dist.broadcast_object_list(names)
    return names[0]


@on_gloo_ranks
def test_what_is_saved_in_one_layout_loads_in_any(w):
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


@on_gloo_ranks
def test_checkpoints_of_pytorchs_dtensors_are_read(w):
    from torch.distributed import device_mesh, tensor

    folder, value = shared_folder(w), torch.arange(30.0).view(5, 6)
    theirs = device_mesh.init_device_mesh("cpu", (4,))
    dcp.save({"x": tensor.distribute_tensor(value, theirs, [tensor.Shard(0)])}, checkpoint_id=folder)
    state = {"x": meshtorch.zeros(5, 6, device_mesh=w.mesh(), placements=[Shard(1)])}
    dcp.load(state, checkpoint_id=folder)
    w.same(state["x"].full_tensor(), value)


@on_gloo_ranks
def test_a_pending_sum_is_no_checkpoint(w):
    x = DTensor.from_local(torch.ones(2, 2), w.mesh(), [Partial()])
    for ask in (x.__create_chunk_list__, lambda: x.__create_write_items__("x", x)):
        with pytest.raises(ValueError, match="Any checkpointing related operations are not supported for"):
            ask()
    assert not hasattr(torch.ones(2), "__create_chunk_list__")


@on_gloo_ranks
def test_a_tensor_without_elements_is_in_the_checkpoint(w):
    folder, mesh = shared_folder(w), w.mesh()
    dcp.save({"x": distribute_tensor(torch.zeros(0, 3), mesh, [Shard(0)]), "y": meshtorch.ones(2, device_mesh=mesh)}, checkpoint_id=folder)
    state = {"x": meshtorch.ones(0, 3, device_mesh=mesh), "y": meshtorch.zeros(2, device_mesh=mesh, placements=[Shard(0)])}
    dcp.load(state, checkpoint_id=folder)
    w.same(state["y"].full_tensor(), torch.ones(2))
    parts = distribute_tensor(torch.ones(3, 2), mesh, [Shard(0)]).__create_chunk_list__()
    assert [(part.offsets, part.sizes) for part in parts] == [((w.rank, 0), (int(w.rank < 3), 2))]


@on_gloo_ranks
def test_a_save_in_the_background_has_the_values_of_its_call(w):
    from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions

    value = torch.arange(15.0).view(5, 3)
    for options in (
        {},
        {"async_stager": BlockingAsyncStager()},
        {"async_stager": DefaultStager(StagingOptions(False, True, False, False))},
    ):
        folder = shared_folder(w)
        x = distribute_tensor(value, w.mesh(), [Shard(0)])
        state = {"x": x, "twin": x, "of": {"number": distribute_tensor(torch.tensor(2.0), w.mesh())}, "plain": torch.ones(2)}
        saving = dcp.async_save(state, checkpoint_id=folder, **options)
        x.zero_()
        getattr(saving, "upload_completion", saving).result()
        mesh = w.mesh(2, 2)
        state = {name: meshtorch.zeros(5, 3, device_mesh=mesh, placements=[Shard(1), Shard(0)]) for name in ("x", "twin")}
        state["of"] = {"number": meshtorch.zeros((), device_mesh=mesh)}
        dcp.load(state, checkpoint_id=folder)
        for name in ("x", "twin"):
            w.same(state[name].full_tensor(), value)
        assert state["of"]["number"] == 2


@on_gloo_ranks
def test_whole_state_dicts_of_sharded_models_go_in_and_out(w):
    from meshtorch.fsdp import fully_shard
    from torch.distributed.checkpoint import state_dict as sd
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    full = sd.StateDictOptions(full_state_dict=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Linear(7, 2))
    values = {name: torch.arange(float(p.numel())).view(p.shape) for name, p in model.state_dict().items()}
    for layer in (*model, model):
        fully_shard(layer, mesh=w.mesh())
    optimizer = torch.optim.AdamW(model.parameters())
    for from_rank_0 in (False, True):
        given = dict(values) if w.rank == 0 or not from_rank_0 else {}
        options = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=from_rank_0)
        sd.set_model_state_dict(model, given, options=options)
        now = sd.get_model_state_dict(model, options=full)
        assert set(now) == set(values)
        for name, value in values.items():
            w.same(now[name], value)
        assert all(isinstance(value, DTensor) for value in sd.get_model_state_dict(model).values())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state = copy.deepcopy(sd.get_optimizer_state_dict(model, optimizer, options=full))
        assert state["state"]["0.weight"]["exp_avg"].shape == (7, 3) and not isinstance(state["state"]["0.weight"]["exp_avg"], DTensor)
        optimizer.step()
        given = copy.deepcopy(state) if w.rank == 0 or not from_rank_0 else {}
        sd.set_optimizer_state_dict(model, optimizer, given, options=options)
        now = sd.get_optimizer_state_dict(model, optimizer, options=full)["state"]
        for name, of_parameter in state["state"].items():
            for part, value in of_parameter.items():
                w.same(now[name][part], value)
    on_rank_0 = sd.get_model_state_dict(model, options=sd.StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert set(on_rank_0) == (set(values) if w.rank == 0 else set())
    theirs = distribute_module(torch.nn.Linear(3, 4), init_device_mesh("cpu", (4,)))
    assert type(sd.get_model_state_dict(theirs, options=full)["weight"]) is torch.Tensor


def test_without_a_world_of_torch_distributed_nothing_is_written():
    def body(rank):
        x = distribute_tensor(torch.arange(8.0), meshtorch.init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(RuntimeError, match=r"torch.distributed has no world(.|\n)*do: call torch.distributed.init_process_group"):
            x.__create_write_items__("x", x)
        with pytest.raises(RuntimeError, match="torch.distributed has no world"):
            x.__create_chunk_list__()

    meshtorch.spawn(2, body)
