"""What is remembered of a tensor's values stays true to its memory. MESHTORCH_ACTS=0:10000 runs these drawn programs."""

import os

import meshtorch
import pytest
from acts import Acts

FIRST, LAST = (int(n) for n in os.environ.get("MESHTORCH_ACTS", "0:150").split(":"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [2, 3])
def test_writes_of_some_ranks_are_seen_by_all(size):
    complaints = {}

    def body(rank):
        mesh = meshtorch.init_device_mesh("cpu", (size,))
        for seed in range(FIRST, LAST):
            complaint = Acts(seed, rank, mesh).complaint()
            if complaint:
                complaints[seed] = complaint

    meshtorch.spawn(size, body, timeout=60)
    assert not complaints, "\n\n".join(complaints.values())


def some_programs(w):
    mesh = w.mesh()
    for seed in range(20):
        assert not (complaint := Acts(seed, w.rank, mesh).complaint()), complaint


@pytest.mark.filterwarnings("ignore")
def test_writes_of_some_ranks_are_seen_by_all_processes(gloo_ranks):
    gloo_ranks(some_programs, size=3)
