"""Pending tensors whose terms add up in their own type only."""

import torch
from meshtorch import DTensor, Partial, Shard, distribute_tensor
from worlds import on_ranks


@on_ranks
def test_a_pending_sum_of_bools_is_one_of_bools(w):
    mesh = w.mesh()
    mask = DTensor.from_local(torch.tensor([True, w.rank == 1, False]), mesh, [Partial()])
    whole = torch.tensor([True, True, False])
    zeros = distribute_tensor(torch.zeros(1), mesh)
    for call in (
        lambda m, z: m.to(torch.float64),
        lambda m, z: m.sum(),
        lambda m, z: m * 2.0,
        lambda m, z: m + 1,
        lambda m, z: m.cumsum(0),
        lambda m, z: torch.cat([m, z]),
        lambda m, z: torch.add(m, z),
        lambda m, z: m & m,
    ):
        w.same(call(mask, zeros).full_tensor(), call(whole, torch.zeros(1)))


@on_ranks
def test_a_pending_sum_that_wraps_is_reduced_before_it_gets_another_type(w):
    mesh = w.mesh()
    terms = DTensor.from_local(torch.tensor([200, 100], dtype=torch.uint8), mesh, [Partial()])
    whole = torch.tensor([200 * w.size % 256, 100 * w.size % 256], dtype=torch.uint8)
    zeros = DTensor.from_local(torch.zeros(2), mesh, [Partial()])
    w.same(terms.to(torch.float32).full_tensor(), whole.to(torch.float32))
    w.same((terms + zeros).full_tensor(), whole + torch.zeros(2))
    w.same(torch.stack([terms, zeros]).full_tensor(), torch.stack([whole, torch.zeros(2)]))
    w.same(terms.sum().full_tensor(), whole.sum())
    assert list((terms + terms).placements) == [Partial()]  # in its own type it stays pending


@on_ranks
def test_a_pending_maximum_joined_with_complex_numbers_is_reduced_first(w):
    mesh = w.mesh()
    whole = torch.arange(3.0)
    largest = distribute_tensor(whole, mesh).redistribute(mesh, [Partial("max")])
    other = distribute_tensor(torch.ones(3, dtype=torch.complex64), mesh, [Shard(0)])
    w.same(torch.cat([largest, other]).full_tensor(), torch.cat([whole, torch.ones(3, dtype=torch.complex64)]))
    w.same(torch.stack([other, largest]).full_tensor(), torch.stack([torch.ones(3, dtype=torch.complex64), whole]))
