#!/usr/bin/env python3
"""Calls every operator of the database that PyTorch ships with its tests on distributed tensors: layouts of arguments and of
incoming gradients are drawn, results and gradients compared with the plain call. Ends with 1 if one is wrong, or raises."""

import argparse
import random
import sys
import warnings

import meshtorch
import torch
from meshtorch import DTensor, Partial, Replicate, Shard
from torch.utils._pytree import tree_leaves, tree_map

# Other numbers by intention: they are drawn by global index, or are memory that nobody wrote.
DRAWN = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric", "log_normal",
    "multinomial", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu", "normal", "pca_lowrank",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip
# Refused in words, with the reason.
REFUSED = {
    "sparse.mm": "has arguments without strides",
    "sparse.sampled_addmm": "has arguments without strides",
    "torch._scaled_mm": "has types that LibTorch cannot multiply to compare them",
}


class Call:
    """An operator with arguments, of which each tensor can be replaced."""

    def __init__(self, op, sample, replace):
        self.op = op
        self.input, self.args, self.kwargs = tree_map(replace, (sample.input, tuple(sample.args), dict(sample.kwargs)))

    def __call__(self):
        return self.op.op(self.input, *self.args, **self.kwargs)

    def leaves(self):
        return [t for t in tree_leaves((self.input, self.args, self.kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]


def leaf(value):
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def tensors(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def gradients(result, leaves, place=lambda gradient, of: gradient):
    results = [t for t in tensors(result) if t.requires_grad]
    if not results or not leaves:
        return []
    given = []
    for number, t in enumerate(results):
        values = torch.arange(t.numel(), dtype=torch.float64).mul(0.37).add(number).sin().add(0.3)
        given.append(place(values.view(t.shape).to(t.dtype), t))
    return torch.autograd.grad(results, leaves, given, allow_unused=True)


class Layouts:
    """Draws how a tensor lies on a mesh: the same on every rank."""

    def __init__(self, mesh, seed):
        self.mesh, self.random, self.drawn = mesh, random.Random(seed), []

    def _placement(self, tensor):
        kinds = ["whole"] + ["split"] * 3 * bool(tensor.dim()) + ["pending"] * (tensor.is_floating_point() or tensor.is_complex())
        kind = self.random.choice(kinds)
        if kind == "split":
            return Shard(self.random.randrange(tensor.dim()))
        return Partial() if kind == "pending" else Replicate()

    def place(self, tensor):
        placements = [self._placement(tensor) for _ in range(self.mesh.ndim)]
        self.drawn.append(placements)
        terms = tensor.detach()
        for axis, placement in enumerate(placements):
            if isinstance(placement, Partial):
                # Each element is the term of one rank, so that the sum is exact.
                owner = (torch.arange(terms.numel()).view(terms.shape) + axis) % self.mesh.size(axis)
                terms = torch.where(owner == self.mesh.get_local_rank(axis), terms, torch.zeros_like(terms))
        lies = {"shape": tensor.shape, "stride": tensor.stride()}
        if any(isinstance(p, Partial) for p in placements):
            pending = [p if isinstance(p, Partial) else Replicate() for p in placements]
            return DTensor.from_local(terms, self.mesh, pending, **lies).redistribute(placements=placements)
        local = meshtorch.distribute_tensor(terms, self.mesh, placements, src_data_rank=None).to_local()
        return DTensor.from_local(local, self.mesh, placements, **lies)

    def replace(self, value):
        if not isinstance(value, torch.Tensor):
            return value
        return self.place(value).detach().requires_grad_(value.requires_grad)


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tolerance_of(values):
    """What rounding explains in the least precise type of a call."""
    types = {t.dtype for t in tensors(values) if t.is_floating_point() or t.is_complex()}
    return max((16 * torch.finfo(t).eps if torch.finfo(t).bits == 16 else 1e-4 for t in types - {torch.float64, torch.complex128}), default=1e-8)


def difference(actual, expected, tolerance):
    """What is not as expected, in words; nothing if all is."""
    if actual is None or expected is None:
        there = [t for t in (actual, expected) if t is not None]
        return "one is missing and the other not zero" if any(t.any() for t in there) else ""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return f"{actual.dtype}{list(actual.shape)} for {expected.dtype}{list(expected.shape)}"
    if not (expected.is_floating_point() or expected.is_complex()):
        return "" if torch.equal(actual, expected) else "other values"
    size = expected.abs()[expected.isfinite()]
    scale = max(1.0, size.max().item() if size.numel() else 0.0)
    if torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return ""
    return f"off by {(actual - expected).abs().max().item():.3g} of {scale:.3g}"


def compare(op, sample, expected, expected_gradients, shape, seed, in_inference_mode):
    def on_rank(_):
        layouts = Layouts(meshtorch.init_device_mesh("cpu", shape), seed)
        call = Call(op, sample, layouts.replace)
        with torch.inference_mode(in_inference_mode):
            result = call()
        found = gradients(result, call.leaves(), lambda g, of: layouts.place(g) if isinstance(of, DTensor) else g)
        pairs = [("result", whole(a), e) for a, e in zip(tensors(result), expected, strict=True)]
        pairs += [("gradient", a if a is None else whole(a), e) for a, e in zip(found, expected_gradients, strict=True)]
        tolerance = tolerance_of((sample.input, sample.args, sample.kwargs, expected))
        found = [(what, difference(a, e, tolerance)) for what, a, e in pairs]
        wrong = [f"{what} {words}" for what, words in found if words]
        if wrong:
            raise AssertionError(f"WRONG {'; '.join(wrong)}; layouts {layouts.drawn}")

    ranks = 1
    for size in shape:
        ranks *= size
    meshtorch.spawn(ranks, on_rank, timeout=60)


def plain_run(op, sample, in_inference_mode):
    """Results and gradients, or nothing where the plain call fails or gives what is no dense tensor."""
    try:
        call = Call(op, sample, leaf)
        with torch.inference_mode(in_inference_mode):
            result = call()
        found = gradients(result, call.leaves())
    except Exception:
        return None
    expected = [t.detach() for t in tensors(result)]
    if any(t.layout != torch.strided or t.is_quantized for t in expected):
        return None
    return expected, [t if t is None else t.detach() for t in found]


def samples_of(op, count, seed, dtype):
    types = [t for t in (torch.float64, torch.float32, torch.int64, torch.bool) if t in op.dtypes] or list(op.dtypes)
    if dtype is not None:
        types = [dtype] if dtype in op.dtypes else []
    if not types:
        return []
    has_gradient = op.supports_autograd and types[0] in op.backward_dtypes and (types[0].is_floating_point or types[0].is_complex)
    torch.manual_seed(seed)
    drawn = list(op.sample_inputs("cpu", types[0], requires_grad=has_gradient))
    random.Random(f"{seed} {op.full_name}").shuffle(drawn)
    return [s for s in drawn if not s.kwargs.get("dropout_p")][:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4, help="calls of each operator, at most")
    parser.add_argument("--mesh", type=int, nargs="+", default=[3], help="sizes of its axes")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), help="of samples, as bfloat16; by default float64, or what is taken instead")
    parser.add_argument("--inference", action="store_true", help="call in inference mode, without gradients")
    parser.add_argument("--only", default="", help="operators whose names contain this")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    right = failed = 0
    for op in op_db:
        if op.name in DRAWN or op.name in REFUSED or options.only not in op.full_name:
            continue
        for number, sample in enumerate(samples_of(op, options.samples, options.seed, options.dtype)):
            expected = plain_run(op, sample, options.inference)
            if expected is None:
                continue
            try:
                compare(op, sample, *expected, options.mesh, f"{options.seed} {op.full_name} {number}", options.inference)
                right += 1
            except Exception as error:
                failed += 1
                words = " ".join(str(error).split())[:500]
                print(f"{op.full_name}, sample {number}: {words}\n  {' '.join(str(sample.summary()).split())[:300]}", flush=True)
    print(f"{right} passed, {failed} failed")
    return 1 if failed or not right else 0


if __name__ == "__main__":
    sys.exit(main())
