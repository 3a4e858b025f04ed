"""DeviceMesh under PyTorch's names, with its exceptions."""

import os
import subprocess
import sys
from datetime import timedelta

import meshtorch
import pytest
import torch
from meshtorch import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh
from meshtorch.device_mesh import _mesh_resources
from meshtorch.fsdp import fully_shard
from meshtorch.parallel import ColwiseParallel, parallelize_module
from worlds import on_gloo_ranks, on_ranks


@on_ranks
def test_a_mesh_tells_what_it_is(w):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh.ndim, mesh.shape, mesh.size(), mesh.size(1), mesh.device_type) == (2, (2, 2), 4, 2, "cpu")
    assert mesh.mesh_dim_names == ("dp", "tp") and mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert mesh.mesh.dtype == torch.int32
    assert mesh.get_rank() == w.rank and mesh.get_coordinate() == (w.rank // 2, w.rank % 2)
    assert mesh.get_local_rank("dp") == w.rank // 2 and mesh.get_local_rank(1) == w.rank % 2
    assert mesh["tp"].shape == (2,) and mesh["dp", "tp"] == mesh and mesh["tp"].get_local_rank() == w.rank % 2
    assert mesh["tp"].get_group() == mesh.get_group("tp") == mesh.get_all_groups()[1]
    assert mesh._flatten("all").shape == (4,) and mesh["all"].mesh.tolist() == [0, 1, 2, 3]
    assert init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) == mesh != init_device_mesh("cpu", (2, 2))
    assert hash(mesh) == hash(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    assert repr(mesh) == "DeviceMesh((dp=2, tp=2), [[0, 1], [2, 3]], cpu)"
    part = DeviceMesh("cpu", [1, 2])
    assert part.get_coordinate() == ({1: (0,), 2: (1,)}.get(w.rank))
    assert init_device_mesh("cpu", (2,)).mesh.tolist() == [0, 1]  # the first ranks, as PyTorch has it


@on_ranks
def test_meshes_are_cut_and_joined(w):
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    mesh = world._unflatten(0, (2, 1, 2), ("dp", "cp", "tp"))
    assert mesh.mesh_dim_names == ("dp", "cp", "tp") and mesh.mesh.tolist() == [[[0, 1]], [[2, 3]]]
    mesh["dp", "cp"]._flatten()
    both = mesh["dp_cp", "tp"]
    assert both.shape == (2, 2) and both.get_group("dp_cp") == mesh.get_group("dp_cp") == mesh.get_group("dp")
    assert DeviceMesh._concatenate([mesh["dp"], mesh["cp", "tp"]]) == mesh
    with pytest.raises(KeyError):
        world["dp"]


@on_ranks
def test_a_mesh_knows_the_one_that_it_was_cut_from(w):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    for one, name in ((mesh, "tp"), (other, "ep")):
        part = one["dp"]
        assert part._get_root_mesh() == one._get_root_mesh() == _mesh_resources.get_root_mesh(part) == one
        assert part._get_root_mesh_dim() == one._get_mesh_dim_by_name("dp") == 0
        assert one[name]._get_root_mesh_dim() == 1
        one._flatten(f"dp_{name}")
        assert one[f"dp_{name}"]._get_root_mesh() == one
        with pytest.raises(KeyError, match="has no axis"):
            one._get_mesh_dim_by_name("pp")
    assert mesh["dp"] == other["dp"]
    assert [part.mesh.tolist() for part in mesh._get_all_submeshes("dp")] == [[0, 2], [1, 3]]
    assert mesh["dp"] in mesh._get_all_submeshes("dp")
    unnamed = init_device_mesh("cpu", (4,))
    assert unnamed._get_root_mesh() == unnamed and unnamed._get_root_mesh_dim() is None
    with pytest.raises(AssertionError, match="2 axes has no one number"):
        mesh._get_root_mesh_dim()
    with mesh:
        assert _mesh_resources.get_current_mesh() == mesh


@on_ranks
def test_a_mesh_tells_how_it_lies_in_the_one_that_it_was_cut_from(w):
    if w.size != 4:
        return
    mesh = w.mesh(2, 1, 2, names=("dp", "cp", "tp"))
    assert [list(axis.sizes_and_strides) for axis in mesh._layout] == [[(2, 2)], [], [(2, 1)]]
    assert mesh["tp"]._layout == mesh._layout[2:] and mesh._flatten_mapping == {}
    flat = mesh["dp", "tp"]._flatten()
    assert list(mesh._flatten_mapping) == list(flat._flatten_mapping) == ["dp_tp"]
    assert mesh._flatten_mapping["dp_tp"] == flat and mesh["dp_tp"]._layout == flat._layout
    assert flat._layout.collapse().global_ranks(4) == [[0, 1, 2, 3]]
    assert mesh["dp"]._layout.collapse().global_ranks(4) == [[0, 2], [1, 3]]
    turned = DeviceMesh("cpu", [[3, 1], [2, 0]], mesh_dim_names=("a", "b"))
    assert turned._flatten_rank_map == turned["a"]._flatten_rank_map == (3, 1, 2, 0)
    assert turned["a"]._layout.remap_to_tensor(torch.tensor(turned._flatten_rank_map)).tolist() == [[3, 2], [1, 0]]
    assert turned._coordinate_on_dim == turned.get_coordinate()
    if w.kind != "threads":
        assert turned._dim_group_names == [turned.get_group(axis).group_name for axis in ("a", "b")]


@on_ranks
def test_wrong_uses_raise_what_pytorch_raises(w):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for wrong, error, match in (
        (lambda: mesh["pp"], KeyError, "Invalid mesh_dim_name.*has no axis"),
        (lambda: mesh["tp", "dp"], KeyError, "indices should be in ascending order.*keep the mesh's order"),
        (lambda: mesh._unflatten(0, (2,), ("a", "b")), RuntimeError, "must have same length as mesh_sizes"),
        (lambda: mesh._unflatten("x", (2,), ("a",)), ValueError, "has no axis"),
        (lambda: mesh._unflatten(0, (3,), ("a",)), ValueError, "cannot become axes of"),
        (lambda: mesh._flatten("dp"), ValueError, "dp already exists for submesh of the DeviceMesh"),
        (lambda: init_device_mesh("cpu", (4,))._flatten(), RuntimeError, "Cannot flatten"),
        (lambda: DeviceMesh._concatenate([mesh, mesh["tp"]]), ValueError, "overlap"),
        (lambda: mesh.get_group("pp"), KeyError, "has no axis"),
        (lambda: mesh.get_group(), RuntimeError, "mesh_dim"),
        (lambda: mesh.get_local_rank(), RuntimeError, "mesh_dim"),
        (lambda: mesh.size(2), IndexError, "no axis 2"),
        (lambda: init_device_mesh("cpu", (4,))["x"], RuntimeError, "without mesh_dim_names"),
        (lambda: init_device_mesh("cpu", (4,), mesh_dim_names=("a", "b")), RuntimeError, "same length"),
        (lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "a")), RuntimeError, "unique"),
        (lambda: init_device_mesh("cpu:0", (4,)), RuntimeError, "index is not supported"),
        (lambda: init_device_mesh("cpu", (8,)), ValueError, "not in the world of 4 ranks"),
        (lambda: DeviceMesh("cpu", [0, 0]), ValueError, "twice"),
    ):
        with pytest.raises(error, match=match):
            wrong()


def run_alone(program, **environment):
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables | environment, capture_output=True, text=True, timeout=60
    )


@on_ranks
def test_ranks_outside_a_mesh_ask_of_its_tensors_what_needs_no_data(w):
    mesh = DeviceMesh("cpu", [0, 1])
    chances = distribute_tensor(torch.full((4,), 0.5), mesh, [Shard(0)], src_data_rank=None)
    assert torch.allclose(chances, chances)
    assert torch.bernoulli(chances).shape == (4,)
    if w.rank > 1:
        with pytest.raises(RuntimeError, match="(?s)rank . is not in the tensor's mesh.*do: read it on the ranks"):
            chances.sum().item()
    with pytest.raises(ValueError, match="(?s)a tensor cannot have a negative size.*sizes: .-1, 4.*do:"):
        meshtorch.zeros(-1, 4, device_mesh=mesh, placements=[Replicate()])


def test_without_torch_distributed_a_world_is_made_from_the_environment():
    program = """
import meshtorch, torch
mesh = meshtorch.init_device_mesh("cpu", (1,))
x = meshtorch.distribute_tensor(torch.arange(3.0), mesh, [meshtorch.Shard(0)])
print(mesh.get_group(), x.sum().item(), torch.distributed.is_initialized())
"""
    done = run_alone(program, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Group(rank=0, ranks=[0]) 3.0 False\n"
    lost = run_alone(program)
    assert lost.returncode == 1 and "RANK" in lost.stderr


def test_the_world_follows_that_of_torch_distributed():
    import worlds

    for size in (2, 3):
        with worlds.fake_group(size):
            assert init_device_mesh("cpu", (size,)).size() == size


def test_an_error_of_a_thread_rank_is_raised_by_spawn():
    def fail(rank):
        mesh = init_device_mesh("cpu", (2,))
        if rank == 1:
            raise KeyError("one rank fails")
        meshtorch.functional_collectives.barrier(mesh)

    with pytest.raises(KeyError, match="one rank fails"):
        meshtorch.spawn(2, fail, timeout=20)


@on_ranks
def test_axes_have_backends_of_their_own(w):
    if w.kind == "threads":
        with pytest.raises(ValueError, match="backend_override chooses among the backends of torch.distributed"):
            init_device_mesh("cpu", (2, 2), backend_override={0: "gloo"})
    if w.kind != "gloo":
        return
    # Ranks that no other test of this world puts on an axis.
    mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=("odd", "one"), backend_override={"odd": "fake"})
    if w.rank < 3:
        group = mesh.get_group("odd")
        assert (group._get_backend_name(), group.group_desc) == ("custom", "mesh_odd")
        with pytest.raises(ValueError, match="one already on the axis odd\n  asked: gloo, options None\n  there: fake"):
            init_device_mesh("cpu", (3,), mesh_dim_names=("odd",), backend_override={"odd": "gloo"})
        again = init_device_mesh("cpu", (3,), mesh_dim_names=("odd",), backend_override={"odd": "fake"})
        assert again.get_group("odd") == mesh["odd"].get_group() == group
        # Another axis of these ranks is no such axis: it communicates.
        usual = init_device_mesh("cpu", (3,), mesh_dim_names=("usual",))
        assert usual.get_group("usual") != group
        assert distribute_tensor(torch.arange(3.0) + w.rank, usual, [Shard(0)]).full_tensor().tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="Found redundant dim index 0 and name dp"):
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={"dp": "gloo", 0: "gloo"})
    with pytest.raises(RuntimeError, match=r"Found invalid keys in backend_override: got \['cp'\]"):
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={"cp": "gloo"})
    usual = init_device_mesh("cpu", (4,))
    x = meshtorch.distribute_tensor(torch.arange(4.0), usual, [meshtorch.Shard(0)])
    assert x.full_tensor().tolist() == [0, 1, 2, 3]


@on_gloo_ranks(size=5)
def test_a_backend_may_be_asked_for_again(w):
    world = init_device_mesh("cpu", (5,), mesh_dim_names=("world",))
    for _ in range(2):
        assert world._unflatten(0, (1, 5), ("pp", "n"), backend_override={"pp": "fake"}).shape == (1, 5)
        assert world._unflatten(0, (1, 5), ("pp", "n"), backend_override={"n": "gloo"}).shape == (1, 5)  # as it is
        options = torch.distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=77)
        assert init_device_mesh("cpu", (4,), mesh_dim_names=("own",), backend_override={0: options}).shape == (4,)
    if w.rank < 4:
        options._timeout = timedelta(seconds=78)
        with pytest.raises(ValueError, match="which have one already"):
            init_device_mesh("cpu", (4,), mesh_dim_names=("own",), backend_override={0: options})


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.up(x)).sum()


@on_ranks
def test_slices_of_meshes_of_one_world_go_together(w):
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    one = world._unflatten(0, (2, 2), ("fsdp", "tp"))
    other = world._unflatten(0, (1, 2, 1, 2), ("pp", "batch", "cp", "tp"))
    wide = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "cp", "tp"))
    wide["pp", "cp"]._flatten("both")
    for dp, tp in (
        (one["fsdp"], one["tp"]),
        (one["fsdp"], other["tp"]),
        (other["batch"], one["tp"]),
        (other["pp", "batch"], other["tp"]),
        (wide["both"], wide["tp"]),
        (wide["both"], one["tp"]),
    ):
        net = Pair()
        plan = {"up": ColwiseParallel(output_layouts=Replicate())}
        parallelize_module(net, tp, plan)
        fully_shard(net, mesh=dp)
        net(torch.ones(2, 4)).backward()
        assert net.up.weight.device_mesh.mesh_dim_names == (*dp.mesh_dim_names, *tp.mesh_dim_names)
        assert net.up.weight.device_mesh.mesh.flatten().tolist() == [0, 1, 2, 3]
        assert net.up.weight.to_local().shape == (2, 4)
    with pytest.raises(ValueError, match="cannot be data parallel over another"):
        net = Pair()
        parallelize_module(net, one["tp"], {"up": ColwiseParallel()})
        fully_shard(net, mesh=world)  # which holds the ranks of tp


@on_ranks
def test_the_costs_of_axes_are_set_and_measured(w):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh.axis_cost("tp") == pytest.approx({"latency": 1e-5, "bandwidth": 1e10})
    mesh.set_axis_cost("tp", latency=1e-3, bandwidth=1e9)
    assert mesh["tp"].axis_cost() == pytest.approx({"latency": 1e-3, "bandwidth": 1e9})
    with pytest.raises(ValueError, match="an axis cannot cost"):
        mesh.set_axis_cost(0, latency=-1.0, bandwidth=1e9)
    mesh.measure()
    assert mesh.axis_cost("dp")["latency"] > 0 and mesh.axis_cost("tp") != {"latency": 1e-3, "bandwidth": 1e9}


def test_axes_without_ranks_are_refused(fake_world):
    for shape in ((-1, 2), (0,)):
        with pytest.raises(ValueError, match="an axis of a mesh has at least 1 rank"):
            meshtorch.init_device_mesh("cpu", shape)
