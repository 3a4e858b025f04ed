"""Ranks that are threads behave like processes: generators of their own, and time-outs that are ones."""

import signal
import subprocess
import sys
import threading

import meshtorch
import pytest
import torch


def drawn():
    return [
        torch.rand(3),
        torch.randn(4),
        torch.randperm(8),
        torch.nn.functional.dropout(torch.ones(20), 0.5),
        torch.nn.Linear(3, 2).weight.detach(),
        torch.nn.init.trunc_normal_(torch.empty(5)),
    ]


def drawn_with(seed):
    torch.manual_seed(seed)
    return drawn()


def are_equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_each_thread_rank_has_a_generator():
    expected = [drawn_with(seed) for seed in range(3)]

    def body(rank):
        assert are_equal(drawn_with(rank), expected[rank])
        torch.manual_seed(rank)
        assert torch.initial_seed() == rank
        state = torch.get_rng_state()
        first = torch.rand(5)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
        torch.set_rng_state(state)
        assert torch.equal(torch.rand(5), first)

    for _ in range(10):
        meshtorch.spawn(3, body, timeout=30)


def test_ranks_start_where_their_process_is_and_leave_it_there():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    expected = drawn()
    torch.set_rng_state(state)

    def body(rank):
        assert are_equal(drawn(), expected)
        torch.manual_seed(rank)

    meshtorch.spawn(3, body, timeout=30)
    assert are_equal(drawn(), expected)


@pytest.mark.parametrize("timeout", [float("nan"), -1, 0, 1e300, float("inf")])
def test_timeouts_that_no_clock_knows_are_refused(timeout):
    with pytest.raises(ValueError, match="is not between 1 ms and a year"):
        meshtorch.spawn(1, lambda rank: None, timeout=timeout)
    with pytest.raises(ValueError, match="is not between 1 ms and a year"):
        meshtorch.init_process_group("fake", rank=0, world_size=1, timeout=timeout)


def test_a_rank_that_leaves_autocast_changes_nothing_for_the_others():
    has_cast, has_left = threading.Event(), threading.Event()
    shared = {}

    def body(rank):
        mesh = meshtorch.init_device_mesh("cpu", (2,))
        weight = meshtorch.distribute_tensor(torch.ones(3, 3), mesh, [meshtorch.Replicate()]).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            first = weight.detach() @ weight
            if rank == 0:
                has_cast.set()
                assert has_left.wait(30)
            else:
                assert has_cast.wait(30)
            second = weight.detach() @ weight
        has_left.set()
        casts = [product.grad_fn.next_functions[1][0] for product in (first, second)]
        shared[rank] = casts[0] is casts[1]

    meshtorch.spawn(2, body, timeout=30)
    assert shared[0] == shared[1]


INTERRUPTED = """
import signal, time
import meshtorch, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
def body(rank):
    mesh = meshtorch.init_device_mesh("cpu", (2,))
    if rank == 0:
        print("ready", flush=True)
    while True:
        if rank == 0 or {collects}:
            meshtorch.functional_collectives.all_reduce(torch.ones(3), "sum", mesh).wait()
        else:
            time.sleep(0.01)
try:
    meshtorch.spawn(2, body)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("collects", [False, True])
def test_ctrl_c_ends_ranks_that_compute_and_ranks_that_wait(collects):
    command = [sys.executable, "-c", INTERRUPTED.format(collects=collects)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "interrupted\n" and process.returncode == 0
        finally:
            process.kill()
