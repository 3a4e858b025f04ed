"""Fixtures: `ranks` runs a body in each kind of world."""

import functools

import pytest
import worlds
from processes import Processes


@pytest.fixture(scope="session")
def processes():
    """Groups of processes by size, each started once and again after a failure."""
    running = {}

    def of_size(size):
        if size not in running or not running[size].is_alive:
            running[size] = Processes(size)
        return running[size]

    yield of_size
    for group in running.values():
        if group.is_alive:
            group.stop()


@pytest.fixture(params=["gloo", "fake", "threads"])
def ranks(request, processes):
    """ranks(body, size=4) runs body(Rank) on every rank of this kind of world."""

    def run(body, size=4):
        return worlds.run(request.param, size, body, processes)

    run.kind = request.param
    return run


@pytest.fixture
def gloo_ranks(processes):
    """The same on gloo processes alone, with what every rank returned as the result."""
    return functools.partial(_run_on_gloo, processes)


def _run_on_gloo(processes, body, size=4):
    return worlds.run("gloo", size, body, processes)


@pytest.fixture
def fake_world():
    """A fake group of 2 ranks, of which this is the second."""
    with worlds.fake_group(2, rank=1):
        yield worlds.Rank("fake", 1, 2)
