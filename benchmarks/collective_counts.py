"""How many collectives each operator needs here and in PyTorch's DTensor, for the same calls, in one run.

    PYTHONPATH=build/release/python python benchmarks/collective_counts.py [--only add,mm] [--samples 2]

Calls are the samples of PyTorch's own database of operators; each tensor is replicated, split along a dim or pending, on four ranks of a
fake group, so that nothing is sent. A call counts where both libraries make it. The result of a call is made whole as PyTorch's own tests
do, so that a pending or split result is no saving; what that costs is counted too.
"""

import argparse
import itertools
import math
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.tensor as stock
from torch.distributed.tensor.debug import CommDebugMode as StockCounts
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

import meshtorch
from meshtorch.debug import CommDebugMode

RANKS = 4
COMBINATIONS = 12  # of placements, for each sample


def placements_of(tensor, library):
    """Replicated, split along each of the first two dims that can be, pending."""
    found = [library.Replicate()]
    found += [library.Shard(dim) for dim in range(min(tensor.ndim, 2)) if tensor.shape[dim] >= RANKS]
    if tensor.is_floating_point():
        found.append(library.Partial())
    return found


def tensors_in(sample):
    leaves, _ = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def distributed(tensor, mesh, placement, library):
    local = tensor.detach()
    if placement.is_shard():
        local = local.chunk(RANKS, placement.dim)[0].contiguous()
    shape, stride = tensor.shape, tensor.contiguous().stride()
    return library.DTensor.from_local(local, mesh, [placement], run_check=False, shape=shape, stride=stride)


def count(op, sample, choice, mesh, library, mode_type):
    """The collectives of the call and of making its results whole; None where the library refuses it."""
    numbers = iter(choice)

    def place(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return distributed(leaf, mesh, placements_of(leaf, library)[next(numbers)], library)

    try:
        input, args, kwargs = pytree.tree_map(place, (sample.input, sample.args, sample.kwargs))
        mode = mode_type()
        with torch.no_grad(), mode:
            result = op(input, *args, **kwargs)
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, library.DTensor):
                    leaf.full_tensor()
        return mode.get_total_counts()
    except Exception:  # noqa: BLE001 (whatever it says, the call does not count)
        return None


def counts_of(op, meshes, samples):
    """(calls, ours, theirs, worst call) over all placements of the first samples."""
    calls = ours = theirs = 0
    worst = (0, "")
    drawn = (s for s in op.sample_inputs("cpu", torch.float32) if 0 < len(tensors_in(s)) <= 4)
    for sample in itertools.islice((s for s in drawn if max(t.ndim for t in tensors_in(s)) > 0), samples):
        tensors = tensors_in(sample)
        choices = itertools.product(*(range(len(placements_of(t, stock))) for t in tensors))
        total = math.prod(len(placements_of(t, stock)) for t in tensors)
        for choice in itertools.islice(choices, 0, None, max(1, total // COMBINATIONS)):
            here = count(op, sample, choice, meshes[0], meshtorch, CommDebugMode)
            there = count(op, sample, choice, meshes[1], stock, StockCounts) if here is not None else None
            if here is None or there is None:
                continue
            calls, ours, theirs = calls + 1, ours + here, theirs + there
            lies = ", ".join(f"{placements_of(t, stock)[c]} of {list(t.shape)}" for t, c in zip(tensors, choice))
            worst = max(worst, (here - there, lies))
    return calls, ours, theirs, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of operators, with commas")
    parser.add_argument("--samples", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    meshtorch.set_fallback_policy("silent")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    meshes = meshtorch.init_device_mesh("cpu", (RANKS,)), dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    wanted = set(filter(None, options.only.split(",")))
    rows, seen = [], set()
    for op in op_db:
        name = op.full_name
        if (wanted and name not in wanted) or name in seen or torch.float32 not in op.dtypes:
            continue
        seen.add(name)
        torch.manual_seed(0)
        try:
            calls, ours, theirs, worst = counts_of(op, meshes, options.samples)
        except Exception as error:  # noqa: BLE001 (some samples cannot be made here)
            print(f"{name}: no samples: {error}", file=sys.stderr)
            continue
        if calls:
            rows.append((name, calls, ours, theirs, worst))
            print(f"{name:44}{calls:5}{ours:6}{theirs:6}  {'more: ' + worst[1] if worst[0] > 0 else ''}", file=sys.stderr, flush=True)
    less = sum(ours < theirs for _, _, ours, theirs, _ in rows)
    more = [row for row in rows if row[4][0] > 0]
    total = [sum(row[i] for row in rows) for i in (1, 2, 3)]
    print(f"{len(rows)} operators, {total[0]} calls: {total[1]} collectives here, {total[2]} in PyTorch; fewer for {less} operators.")
    print(f"Operators with a call that needs more here: {len(more)}.")
    print("\n| operator | calls | here | PyTorch | a call that needs more here |\n|---|---|---|---|---|")
    for name, calls, ours, theirs, worst in more:
        print(f"| `{name}` | {calls} | {ours} | {theirs} | {worst[1]} (+{worst[0]}) |")


if __name__ == "__main__":
    main()
