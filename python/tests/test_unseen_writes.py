"""What is remembered of a tensor's values stays true to its memory. MESHTORCH_ACTS=0:10000 runs these drawn programs."""

import os

import meshtorch
import pytest
from acts import Acts
from meshtorch import DeviceMesh

FIRST, LAST = (int(n) for n in os.environ.get("MESHTORCH_ACTS", "0:150").split(":"))


def two_meshes(size):
    return [DeviceMesh("cpu", list(range(size))), DeviceMesh("cpu", list(reversed(range(size))))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [2, 3])
def test_writes_of_some_ranks_are_seen_by_all(size):
    complaints = {}

    def body(rank):
        meshes = two_meshes(size)
        for seed in range(FIRST, LAST):
            complaint = Acts(seed, rank, meshes, ranks_are_threads=True).complaint()
            if complaint:
                complaints[seed] = complaint

    meshtorch.spawn(size, body, timeout=60)
    assert not complaints, "\n\n".join(complaints.values())


def some_programs(w):
    meshes = two_meshes(w.size)
    for seed in range(20):
        assert not (complaint := Acts(seed, w.rank, meshes, ranks_are_threads=False).complaint()), complaint


@pytest.mark.filterwarnings("ignore")
def test_writes_of_some_ranks_are_seen_by_all_processes(gloo_ranks):
    gloo_ranks(some_programs, size=3)
