"""The tests' own processes: a rank that hangs or dies is a failure that says where it was."""

import os
import time

import pytest
from processes import Processes


def hang_on_rank_one(name):
    import torch.distributed as dist

    if dist.get_rank() == 1:
        time.sleep(1000)
    return name


def die_on_rank_one():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(3)


def test_a_rank_that_hangs_is_named_with_its_stack():
    ranks = Processes(2)
    assert ranks.run(os.getenv, "NO_SUCH_VARIABLE") == [None, None]
    with pytest.raises(AssertionError, match="(?s)rank 0 done.*rank 1 did not answer in time.*hang_on_rank_one"):
        ranks.run(hang_on_rank_one, "x", limit=3)
    assert not ranks.is_alive


def test_a_rank_that_dies_is_named_with_its_exit_code():
    with pytest.raises(AssertionError, match="rank 1 died\nexit code 3"):
        Processes(2).run(die_on_rank_one)
