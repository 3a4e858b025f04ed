"""The worlds that tests run in: gloo processes, torch's fake group, thread ranks. One body serves all three."""

import functools
from contextlib import contextmanager
from dataclasses import dataclass

import meshtorch
import torch
import torch.distributed as dist
from torch.testing import assert_close
from torch.testing._internal.distributed.fake_pg import FakeStore


@dataclass
class Rank:
    """What a test's body knows of where it runs."""

    kind: str
    rank: int
    size: int

    def same(self, actual, expected, **tolerance):
        """Both are equal; where nothing is really communicated, they have one shape and type."""
        if self.kind == "fake":
            assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        else:
            assert_close(actual.detach(), expected.detach(), **tolerance)

    def mesh(self, *shape, names=None):
        return meshtorch.init_device_mesh("cpu", shape or (self.size,), mesh_dim_names=names)


def filled(module):
    """The module with parameters that are the same on every rank, also where threads share torch's generator."""
    with torch.no_grad():
        for number, p in enumerate(module.parameters()):
            p.copy_(0.5 * torch.sin(torch.arange(p.numel(), dtype=p.dtype) * 0.7 + number).view(p.shape))
    return module


@contextmanager
def fake_group(size, rank=0):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _as_test(test, body):
    """The test under the body's name, by which other processes find it. They run the body."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(test, name, getattr(body, name))
    test.body = body
    return test


def on_ranks(body=None, *, size=4):
    """Makes a test of a body, which runs on every rank: of gloo processes, of torch's fake group, and of thread ranks."""
    if body is None:
        return functools.partial(on_ranks, size=size)

    def test(ranks):
        ranks(test, size=size)

    return _as_test(test, body)


def on_gloo_ranks(body=None, *, size=4):
    """Makes a test of a body, which runs on every rank of gloo processes."""
    if body is None:
        return functools.partial(on_gloo_ranks, size=size)

    def test(gloo_ranks):
        gloo_ranks(test, size=size)

    return _as_test(test, body)


def _run_body(body, kind, size):
    torch.manual_seed(0)
    return _body_of(body)(Rank(kind, dist.get_rank(), size))


def _body_of(function):
    return getattr(function, "body", function)


def run(kind, size, body, processes):
    """Runs body(Rank) on every rank; on the fake group, as its last rank."""
    if kind == "gloo":
        return processes(size).run(_run_body, body, kind, size)
    if kind == "fake":
        with fake_group(size, rank=size - 1):
            return [_run_body(body, kind, size)]

    def on_rank(rank):
        _body_of(body)(Rank(kind, rank, size))

    meshtorch.spawn(size, on_rank, timeout=30)
