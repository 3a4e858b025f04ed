"""A pending tensor that is scaled in place is not reduced again."""

import torch
from meshtorch import DTensor, Partial, Replicate
from meshtorch.debug import CommDebugMode
from worlds import on_ranks


def collectives_of(call):
    comm = CommDebugMode()
    with comm:
        call()
    return comm.get_total_counts()


@on_ranks
def test_scaling_in_place_scales_what_was_reduced(w):
    mesh, terms = w.mesh(), torch.arange(12.0).view(4, 3)
    x = DTensor.from_local(terms * (w.rank + 1), mesh, [Partial()])
    expected = terms * (w.size * (w.size + 1) // 2)
    assert collectives_of(lambda: torch.relu(x)) == 1
    read, before = x.redistribute(mesh, [Replicate()]), expected.clone()
    for scale in (
        lambda t: t.mul_(2),
        lambda t: t.div_(torch.tensor(4.0)),
        lambda t: torch._foreach_mul_([t], torch.tensor(8.0)),
        lambda t: torch._foreach_div_([t], 2.0),
    ):
        scale(x), scale(expected)
    found = []
    assert collectives_of(lambda: found.append(torch.relu(x))) == 0
    w.same(found[0].full_tensor(), expected)
    w.same(read.to_local(), before)
    assert x.placements == (Partial(),)
    x.mul_(3)
    x.add_(x)  # no number: the terms are written
    expected.mul_(6)
    w.same(torch.relu(x).full_tensor(), expected)
