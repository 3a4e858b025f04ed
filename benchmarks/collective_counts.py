"""How many collectives each operator needs here and in PyTorch's DTensor, for the same calls, in one run.

    PYTHONPATH=build/release/python python benchmarks/collective_counts.py [--only add,mm] [--samples 2] [--page docs/collective_counts.md]

Calls are the samples of PyTorch's own database of operators, and of some operators that it has not; each tensor is replicated, split along
a dim or pending, on four ranks of a fake group, so that nothing is sent. A call counts where both libraries make it. The result of a call
is made whole as PyTorch's own tests do, so that a pending or split result is no saving; what that costs is counted too. Then the same with the
backward pass of the results' sum, gradients made whole in the place of results.
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
from torch.testing._internal.opinfo.core import SampleInput
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

import meshtorch
from meshtorch.debug import CommDebugMode

RANKS = 4
COMBINATIONS = 12  # of placements, for each sample


class Listed:
    """An operator that the database lacks, with sizes of its tensors."""

    dtypes = (torch.float32,)

    def __init__(self, name, function, *sizes):
        self.full_name, self._function, self._sizes = name, function, sizes

    def __call__(self, *tensors):
        return self._function(*tensors)

    def sample_inputs(self, device, dtype):
        first, *others = (torch.rand(size, device=device, dtype=dtype) for size in self._sizes)
        yield SampleInput(first, args=tuple(others))


def listed_operators():
    aten, prims = torch.ops.aten, torch.ops.prims
    yield Listed("linalg__powsum", lambda x: aten.linalg__powsum(x, 2.0), (8, 12))
    for name in ("_foreach_norm.Scalar", "_foreach_powsum.Scalar"):
        yield Listed(name, lambda *all, op=name: getattr(aten, op.split(".")[0])(list(all), 2.0), (8, 12), (4, 8))
    for name in ("_foreach_add", "_foreach_mul", "_foreach_div", "_foreach_maximum"):
        yield Listed(name, lambda x, y, op=name: getattr(torch, op)([x], [y]), (8, 12), (8, 12))
    for name in ("_foreach_neg", "_foreach_exp", "_foreach_sqrt", "_foreach_abs"):
        yield Listed(name, lambda x, op=name: getattr(torch, op)([x]), (8, 12))
    for name in "abs ceil cos exp floor log neg reciprocal rsqrt sin sqrt tanh view_of".split():
        yield Listed("prims." + name, getattr(prims, name), (8, 12))
    for name in "add div eq fmax fmin le maximum minimum mul pow sub".split():
        yield Listed("prims." + name, getattr(prims, name), (8, 12), (8, 12))
    for name in "amax amin prod sum var".split():
        extra = (1.0,) if name == "var" else ()
        yield Listed("prims." + name, lambda x, op=name, extra=extra: getattr(prims, op)(x, [1], *extra), (8, 12))
    slices = {"1:": slice(1, None), "::2": slice(None, None, 2), "3": 3, "...,3": (..., 3), ":,2:5": (slice(None), slice(2, 5))}
    for text, index in slices.items():
        yield Listed(f"x[{text}]", lambda x, index=index: x[index], (8, 12))
    yield Listed("x[[0,2]]", lambda x: x[torch.tensor([0, 2])], (8, 12))
    yield Listed("x.view(2,4,12)", lambda x: x.view(2, 4, 12), (8, 12))
    yield Listed("x.flatten()", lambda x: x.flatten(), (8, 12))
    yield Listed("linear of 3 dims", torch.nn.functional.linear, (8, 4, 12), (16, 12), (16,))


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


def run_forward(op, arguments, library):
    input, args, kwargs = arguments
    with torch.no_grad():
        result = op(input, *args, **kwargs)
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, library.DTensor):
            leaf.full_tensor()


def run_backward(op, arguments, library):
    inputs = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    for one in inputs:
        one.requires_grad_()
    input, args, kwargs = arguments
    results = [leaf for leaf in pytree.tree_leaves(op(input, *args, **kwargs)) if isinstance(leaf, library.DTensor)]
    sum(result.sum() for result in results if result.requires_grad).backward()
    for one in inputs:
        if one.grad is not None:
            one.grad.full_tensor()


def count(run, op, sample, choice, mesh, library, mode_type):
    """The collectives of running the call and making what it gives whole; None where the library refuses it."""
    numbers = iter(choice)

    def place(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return distributed(leaf, mesh, placements_of(leaf, library)[next(numbers)], library)

    try:
        arguments = pytree.tree_map(place, (sample.input, sample.args, sample.kwargs))
        with mode_type() as mode:
            run(op, arguments, library)
        return mode.get_total_counts()
    except Exception:  # noqa: BLE001 (whatever it says, the call does not count)
        return None


def counts_of(run, op, meshes, samples):
    """(calls, ours, theirs, worst call) over all placements of the first samples."""
    calls = ours = theirs = 0
    worst = (0, "")
    drawn = (s for s in op.sample_inputs("cpu", torch.float32) if 0 < len(tensors_in(s)) <= 4)
    for sample in itertools.islice((s for s in drawn if max(t.ndim for t in tensors_in(s)) > 0), samples):
        tensors = tensors_in(sample)
        choices = itertools.product(*(range(len(placements_of(t, stock))) for t in tensors))
        total = math.prod(len(placements_of(t, stock)) for t in tensors)
        for choice in itertools.islice(choices, 0, None, max(1, total // COMBINATIONS)):
            here = count(run, op, sample, choice, meshes[0], meshtorch, CommDebugMode)
            there = count(run, op, sample, choice, meshes[1], stock, StockCounts) if here is not None else None
            if here is None or there is None:
                continue
            calls, ours, theirs = calls + 1, ours + here, theirs + there
            lies = ", ".join(f"{placements_of(t, stock)[c]} of {list(t.shape)}" for t, c in zip(tensors, choice))
            worst = max(worst, (here - there, lies))
    return calls, ours, theirs, worst


STAYS_SPLIT = "the result stays split, and is gathered for the comparison; PyTorch gathers an operand, or leaves a pending result"
AGREES = "the program reads a number, on which all ranks agree here; PyTorch's ranks read their own"
WRONG = "PyTorch takes terms, or parts, for the whole: its values are wrong"
AGAIN = "backward computes with the operand as it is, pending, and what it needs whole of that is reduced again"
DIVIDED = "a pending sum divided by a tensor is reduced first: terms of a zero divisor are infinities that do not add up"
SMALLEST = "pending numbers are reduced where they are smallest, each for itself; PyTorch reduces what they are multiplied to and added up"
UNEVEN = "PyTorch averages the ranks' means, which is wrong where parts or weights differ"
# Why a call needs more here, by the beginning of the operator's name.
REASONS = {
    "_softmax_backward_data": SMALLEST,
    "addr": STAYS_SPLIT,
    "baddbmm": STAYS_SPLIT,
    "item": AGREES,
    "linear of 3 dims": "activations stay split, and the parameters beside them move",
    "masked.": DIVIDED,
    "masked.logaddexp": AGAIN,
    "masked.logsumexp": AGAIN,
    "matrix_exp": AGAIN,
    "nn.functional.binary_cross_entropy": UNEVEN,
    "nn.functional.conv": WRONG,
    "nn.functional.cosine_embedding_loss": STAYS_SPLIT,
    "nn.functional.gaussian_nll_loss": AGREES,
    "nn.functional.linear": STAYS_SPLIT,
    "nn.functional.linear_cross_entropy": UNEVEN,
    "slice": STAYS_SPLIT,
    "special.xlog1py": "terms times an infinite logarithm do not add up where their sum is zero",
    "tensor_split": "LibTorch reads the memory of the tensor that says where to split: it runs on whole tensors",
    "unbind": "each part stays pending, and is reduced for the comparison",
    "xlogy": "terms times an infinite logarithm do not add up where their sum is zero",
}


def reason_of(name):
    known = [beginning for beginning in REASONS if name.startswith(beginning)]
    return REASONS[max(known, key=len)] if known else "not known"


HEAD = """# Collectives here and in PyTorch

Written by `PYTHONPATH=build/release/python python benchmarks/collective_counts.py --page docs/collective_counts.md`: the samples of PyTorch's
database of operators, every tensor replicated, split or pending, on four ranks of a fake group; what comes out, results or gradients, is made whole.

"""


def table(title, rows):
    """Sums, the operators with a call that needs more here than in PyTorch, and all that differ."""
    less = sum(ours < theirs for _, _, ours, theirs, _ in rows)
    more = [row for row in rows if row[4][0] > 0]
    total = [sum(row[i] for row in rows) for i in (1, 2, 3)]
    lines = [
        f"## {title}",
        "",
        f"{len(rows)} operators, {total[0]} calls: {total[1]} collectives here, {total[2]} in PyTorch. "
        f"Fewer here for {less} operators, more for {sum(ours > theirs for _, _, ours, theirs, _ in rows)}, as many for the others.",
        "",
        f"### Operators with a call that needs more here: {len(more)}",
        "",
        "| operator | calls | here | PyTorch | the worst call | why |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{name}` | {calls} | {ours} | {theirs} | {worst[1]}: +{worst[0]} | {reason_of(name)} |"
            for name, calls, ours, theirs, worst in more
        ),
        "",
        "### Operators that need fewer here",
        "",
        "| operator | calls | here | PyTorch |",
        "|---|---|---|---|",
        *(f"| `{name}` | {calls} | {ours} | {theirs} |" for name, calls, ours, theirs, _ in rows if ours < theirs),
        "",
    ]
    return "\n".join(lines)


def rows_of(run, meshes, wanted, samples):
    rows, seen = [], set()
    for op in [*op_db, *listed_operators()]:
        name = op.full_name
        if (wanted and name not in wanted) or name in seen or torch.float32 not in op.dtypes:
            continue
        seen.add(name)
        torch.manual_seed(0)
        try:
            calls, ours, theirs, worst = counts_of(run, op, meshes, samples)
        except Exception as error:  # noqa: BLE001 (some samples cannot be made here)
            print(f"{name}: no samples: {error}", file=sys.stderr)
            continue
        if calls:
            rows.append((name, calls, ours, theirs, worst))
            print(f"{name:44}{calls:5}{ours:6}{theirs:6}  {'more: ' + worst[1] if worst[0] > 0 else ''}", file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of operators, with commas")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--page", help="a file for the table; without it, it is printed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    meshtorch.set_fallback_policy("silent")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    meshes = meshtorch.init_device_mesh("cpu", (RANKS,)), dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    wanted = set(filter(None, options.only.split(",")))
    passes = {"Forward": run_forward, "Forward and backward": run_backward}
    tables = [table(title, rows_of(run, meshes, wanted, options.samples)) for title, run in passes.items()]
    text = HEAD + "\n".join(tables)
    if options.page:
        with open(options.page, "w") as page:
            page.write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
