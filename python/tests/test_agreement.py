"""Ranks that call something else than the others, in groups of torch.distributed and in worlds of meshtorch."""

import os
import re

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
            (_other_layout, "rank 1: all_reduce(Float[2], sum) at test_agreement.py:24, after from_local(Float, [S(0)])"),
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


def _sum_of_ones(group):
    return funcol.all_reduce(torch.ones(4), "sum", group).wait()


def _train(group):
    return _sum_of_ones(group) + 1


def _evaluate(group):
    return 2 * _sum_of_ones(group)


def _call_from_two_places(rank, group):
    """What is told of one helper that two functions call, and whether all go on from one place."""
    told = _told(lambda: _evaluate(group) if rank == 1 else _train(group))
    return told, torch.equal(_sum_of_ones(group), torch.full((4,), 3.0))


def _expect_both_places(outcomes):
    assert len({told for told, _ in outcomes}) == 1 and all(went_on for _, went_on in outcomes), outcomes
    lines = outcomes[0][0].splitlines()
    where = r"_sum_of_ones \(test_agreement\.py:\d+\), called by {} \(test_agreement\.py:\d+\), called by "
    for rank, function in enumerate(["_train", "_evaluate", "_train"]):
        line = next(line for line in lines if f"rank {rank}:" in line)
        assert re.search(r"all_reduce\(Float\[4\], sum\) at " + where.format(function), line), line


def test_one_call_from_two_places_is_told_where_threads_compare_in_full():
    outcomes = [None] * 3

    def rank_of_three(rank):
        outcomes[rank] = _call_from_two_places(rank, None)

    meshtorch.spawn(3, rank_of_three, agreement="full")
    _expect_both_places(outcomes)
    meshtorch.spawn(3, rank_of_three)
    assert outcomes == [(None, True)] * 3


def _compare_in_full():
    os.environ["MESHTORCH_AGREEMENT"] = "full"
    return _call_from_two_places(dist.get_rank(), dist.group.WORLD)


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_one_call_from_two_places_is_told_where_processes_compare_in_full(backend):
    ranks = Processes(3, backend)
    try:
        _expect_both_places(ranks.run(_compare_in_full))
    finally:
        if ranks.is_alive:
            ranks.stop()
