"""CommDebugMode and drawings."""

import json

import meshtorch
import meshtorch.functional_collectives as funcol
import torch
import torch.distributed as dist
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode, sharding_table, visualize_sharding
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch import nn
from worlds import on_ranks

functional, plain = torch.ops.c10d_functional, torch.ops.c10d


class Communicating(nn.Module):
    def __init__(self, group, is_coalesced):
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.group, self.is_coalesced = group, is_coalesced

    def forward(self, x):
        x = funcol.all_gather_tensor(x, 0, self.group)
        x = self.linear(funcol.reduce_scatter_tensor(x, "sum", 0, self.group))
        if self.is_coalesced:
            return funcol.all_reduce_coalesced([x], "sum", self.group)
        return funcol.all_reduce(x, "sum", self.group)


@on_ranks
def test_functional_collectives_are_counted_by_any_of_their_names(w):
    for is_coalesced in (False, True):
        comm = CommDebugMode()
        with comm:
            Communicating(w.mesh().get_group(), is_coalesced)(torch.randn(20, 10))
        counts = comm.get_comm_counts()
        assert comm.get_total_counts() == 3
        last = "all_reduce_coalesced" if is_coalesced else "all_reduce"
        for name in (last, "all_gather_into_tensor", "reduce_scatter_tensor"):
            assert counts[getattr(functional, name)] == counts[name] == 1
            assert counts[getattr(torch.ops._c10d_functional, name)] == 1
            assert counts.get(getattr(functional, name)) == 1 and getattr(functional, name) in counts
        assert counts[functional.broadcast] == counts["broadcast"] == 0
        assert functional.broadcast not in counts and counts.get(functional.broadcast) is None
        assert comm.comm_counts == counts
        names = (last, "all_gather_into_tensor", "reduce_scatter_tensor")
        same = {getattr(functional, name): 1 for name in names}
        assert counts == same and not counts != same and counts != {functional.all_reduce: 1}
        assert counts[plain._allgather_base_] == counts[plain._allgather_base_.default] == 1


@on_ranks
def test_operators_on_distributed_tensors_are_counted(w):
    mesh, comm = w.mesh(), CommDebugMode()
    x = DTensor.from_local(torch.randn(4, 4 * w.size, requires_grad=True), mesh, [Shard(0)], run_check=False)
    y = DTensor.from_local(torch.randn(4, 32, requires_grad=True), mesh, [Shard(0)], run_check=False)
    with comm:
        torch.mm(x, y)
    counts = comm.get_comm_counts()
    assert comm.get_total_counts() == counts[functional.all_gather_into_tensor] == 1
    assert counts[functional.all_reduce] == counts[functional.reduce_scatter_tensor] == 0


def test_collectives_of_torch_distributed_are_counted_too_and_outside_nothing_is(fake_world):
    comm, x = CommDebugMode(), torch.ones(2)
    dist.all_reduce(x)
    with comm:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD).wait()
    dist.all_reduce(x)
    assert dict(comm.get_comm_counts()) == {"all_reduce": 2, "broadcast": 1}
    with comm:
        pass
    assert comm.get_total_counts() == 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.up(x).relu())


def test_counts_by_module_hold_the_collectives_of_its_hooks(fake_world, tmp_path):
    net = parallelize_module(Net(), fake_world.mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with CommDebugMode() as comm:
        net(torch.ones(2, 4, requires_grad=True)).sum().backward()
    modules = comm.get_module_counts()
    assert modules["Net.down"]["forward"] == {"all_reduce": 1}
    assert modules["Net.up"]["backward"] == {"all_reduce": 1}
    assert modules["Net"]["forward"][functional.all_reduce] == 1
    assert {name: comm.comm_module_counts[name] for name in modules} == modules
    assert comm.comm_module_counts["Global"] == {"forward": {"all_reduce": 1}, "backward": {"all_reduce": 1}}
    assert list(comm.get_parameter_info()) == ["Net.up", "Net.down"]
    assert list(comm.get_parameter_info()["Net.up"]) == ["weight", "bias"]
    assert comm.get_sharding_info()["Net.up.weight"] == (Shard(0),) and len(comm.get_sharding_info()) == 4
    levels = [comm.generate_comm_debug_tracing_table(level) for level in range(4)]
    assert levels[3] == comm.generate_comm_debug_tracing_table() and "Net.down" in levels[0]
    assert ["aten::addmm" in table for table in levels] == [False, True, True, True]
    assert ["Net.up.weight" in table for table in levels] == [False, True, True, True]
    assert ["aten::relu" in table for table in levels] == [False, False, True, True]  # of the plain output of a style
    assert ["aten::t " in table for table in levels] == [False, False, False, True]
    comm.log_comm_debug_tracing_table_to_file(tmp_path / "log.txt")
    comm.generate_json_dump(tmp_path / "log.json")
    assert json.loads((tmp_path / "log.json").read_text())["total_count"] == 2
    assert (tmp_path / "log.txt").read_text() == comm.generate_comm_debug_tracing_table()
    call = nn.Module.__call__
    with comm, CommDebugMode():
        assert nn.Module.__call__ is not call
        assert comm.get_parameter_info() == comm.get_sharding_info() == {}
    assert nn.Module.__call__ is call
    assert "up.weight" in sharding_table(net) and "[S(0)]" in sharding_table(net)


def test_a_drawing_is_printed_on_the_first_rank(capsys):
    import worlds

    for rank in range(2):
        with worlds.fake_group(2, rank=rank):
            mesh = meshtorch.init_device_mesh("cpu", (2,))
            visualize_sharding(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]), header="weights")
            printed = capsys.readouterr().out
            assert ("weights" in printed) == (rank == 0)
            assert "<svg" in meshtorch.debug.sharding_svg(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
