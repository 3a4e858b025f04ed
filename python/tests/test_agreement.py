"""Ranks that call something else than the others, in groups of torch.distributed and in worlds of meshtorch."""

import meshtorch
import pytest
import torch
import torch.distributed as dist
from meshtorch import DTensor, Replicate, Shard
from meshtorch import functional_collectives as funcol
from processes import Processes


def _told(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


def _sum():
    return funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD).wait()


def _other_shape():
    shape = 5 if dist.get_rank() == 1 else 4
    told = _told(lambda: funcol.all_reduce(torch.ones(shape), "sum", dist.group.WORLD).wait())
    return told, torch.equal(_sum(), torch.full((2,), float(dist.get_world_size())))


def _other_layout():
    mesh = meshtorch.init_device_mesh("cpu", (dist.get_world_size(),))
    layout = Shard(0) if dist.get_rank() == 1 else Replicate()
    DTensor.from_local(torch.ones(3, 3), mesh, [layout])
    return _told(_sum), torch.equal(_sum(), torch.full((2,), float(dist.get_world_size())))


def _beside_torch():
    """Calls of torch.distributed itself, between those of meshtorch, keep their order."""
    size = dist.get_world_size()
    for step in range(20):
        mine = funcol.all_reduce(torch.full((4,), float(step)), "sum", dist.group.WORLD)
        theirs = torch.full((4,), 100.0 + step)
        dist.all_reduce(theirs)
        assert torch.equal(theirs, torch.full((4,), (100.0 + step) * size))
        assert torch.equal(mine + 0, torch.full((4,), float(step * size)))


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_that_differ_get_one_table_and_go_on(backend):
    ranks = Processes(3, backend)
    try:
        for event, words in [
            (_other_shape, "rank 1: all_reduce(Float[5], sum)"),
            (_other_layout, "rank 1: all_reduce(Float[2], sum), after from_local(Float, [S(0)])"),
        ]:
            outcomes = ranks.run(event)
            assert len({told for told, _ in outcomes}) == 1, outcomes
            assert words in outcomes[0][0] and all(went_on for _, went_on in outcomes), outcomes
        ranks.run(_beside_torch)
    finally:
        if ranks.is_alive:
            ranks.stop()


def test_the_level_of_agreement_is_an_option():
    with pytest.raises(ValueError, match='no level of agreement "loud"'):
        meshtorch.spawn(1, lambda rank: None, agreement="loud")

    def seed(rank):
        meshtorch.manual_seed(rank)

    with pytest.raises(RuntimeError, match=r"rank 1: manual_seed\(1\)"):
        meshtorch.spawn(2, seed, agreement="full")
    meshtorch.spawn(2, seed, agreement="off")
