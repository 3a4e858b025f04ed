"""Programs of a few lines, drawn from a seed: views, writes in place, redistributions and a backward on shared memory."""

import random
import re

import torch
from meshtorch import Partial, Replicate, Shard, distribute_tensor, is_dtensor

TYPES = {"double": torch.float64, "whole": torch.int64, "complex": torch.complex128, "bool": torch.bool}


def numbers(shape, kind, seed):
    """Multiples of 1/8, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-16, 17, shape, generator=generator)
    if kind == "bool":
        return whole > 0
    if kind == "complex":
        return torch.complex(whole / 8.0, torch.randint(-16, 17, shape, generator=generator) / 8.0).to(TYPES[kind])
    return whole if kind == "whole" else (whole / 8.0).to(TYPES[kind])


def kind_of(tensor):
    return next(kind for kind, dtype in TYPES.items() if dtype == tensor.dtype)


def plain_names():
    """What the lines of a program call, on plain tensors."""
    return {
        "torch": torch,
        "new": lambda shape, kind, seed, layout, needs_grad=False: numbers(shape, kind, seed).requires_grad_(needs_grad),
        "like": lambda t, seed, layout: numbers(tuple(t.shape), kind_of(t), seed),
        "ids": lambda places, layout: torch.tensor(places, dtype=torch.int64),
        "moved": lambda t, layout: t.clone(),
    }


def distributed_names(mesh):
    """The same, on tensors that lie as the lines say."""

    def placed(whole, layout):
        x = distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
        return x.redistribute(mesh, placements(layout))

    def placements(layout):
        return [Replicate() if p == "R" else Partial() if p == "P" else Shard(p) for p in layout]

    def new(shape, kind, seed, layout, needs_grad=False):
        return placed(numbers(shape, kind, seed), layout).detach().requires_grad_(needs_grad)

    return {
        "torch": torch,
        "new": new,
        "like": lambda t, seed, layout: placed(numbers(tuple(t.shape), kind_of(t), seed), layout),
        "ids": lambda places, layout: placed(torch.tensor(places, dtype=torch.int64), layout),
        "moved": lambda t, layout: t.redistribute(mesh, placements(layout)).clone(),
    }


def state_of(tensor):
    value = tensor.detach()
    value = value.full_tensor() if is_dtensor(value) else value.clone()
    return value.resolve_conj().resolve_neg(), tensor.requires_grad


def place_of(tensor):
    """Where its elements lie in memory: the offset, and the strides of dims of several indices."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]
    return (tensor.storage_offset(), strides) if tensor.numel() > 0 else ()


def overlaps(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0


def repeats(tensor):
    """True if one place in memory is several elements, as those of expand and unfold are."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    if tensor.numel() == 0:
        return False
    return torch.arange(reach).as_strided(tensor.shape, tensor.stride()).unique().numel() < tensor.numel()


class Program:
    """Lines of source, and after each what a plain run has: the error, or all tensors. Made by running it plain."""

    def __init__(self, seed, axes):
        self.draw, self.axes = random.Random(seed), axes
        self.names, self.tensors, self.made = plain_names(), [], []
        self.lines, self.expected = [], []
        self._write()

    def _write(self):
        for _ in range(self.draw.choice([1, 2, 2])):
            kind = self.draw.choice(["double", "double", "double", "whole", "complex"])
            needs_grad = kind != "whole" and self.draw.random() < 0.5
            shape = tuple(self.draw.choice([0, 1, 2, 3, 4, 5, 6, 8]) for _ in range(self.draw.choice([0, 1, 2, 2, 3])))
            name = self._fresh()
            self._add(f"{name} = {self._new(shape, kind, needs_grad)}")
            self.made.append(name)
            if needs_grad and self.draw.random() < 0.7:
                self._add(f"{self._fresh()} = {name} * 1")
        for _ in range(self.draw.randrange(4, 12)):
            name = self.draw.choice([n for n in self.tensors if self.names[n].dtype in TYPES.values()])
            if self.names[name].numel() < 400 and self.names[name].dim() < 5:
                self._add(self._step(name, self.names[name]))
        self._differentiate()

    def _add(self, line):
        versions = self._versions()
        try:
            exec(line, self.names)
        except Exception as error:  # the distributed run has to fail too
            if versions == self._versions() and self.draw.random() < 0.3:
                self.lines.append(line)
                self.expected.append((error, None))
            return
        name = line.split(" = ")[0].rstrip(",")
        if name.isidentifier() and name not in self.tensors:
            self.tensors.append(name)
        self.lines.append(line)
        self.expected.append((None, {name: (*state_of(self.names[name]), self._place(name)) for name in self.tensors}))

    def _place(self, name):
        """Of views of what was made new: what was computed may lie in another order."""
        t = self.names[name]
        return place_of(t) if any(overlaps(t, self.names[made]) for made in self.made) else None

    def _versions(self):
        return [(self.names[name]._version, self.names[name].shape) for name in self.tensors]

    def _fresh(self):
        return f"t{len(self.lines)}"

    def _layout(self, dims, pending=True):
        choices = [*range(dims)] * 2 + ["R"] + ["P"] * pending
        return [self.draw.choice(choices) for _ in range(self.axes)]

    def _new(self, shape, kind, needs_grad=False):
        layout = self._layout(len(shape), kind != "bool")
        return f"new({tuple(shape)}, '{kind}', {self.draw.randrange(999)}, {layout}, {needs_grad})"

    def _step(self, name, t):
        chance = self.draw.random()
        if chance < 0.45:
            return f"{self._fresh()} = {self._view(name, t)}"
        if chance < 0.55:
            return f"{self._fresh()} = {self._computed(name, t)}"
        if chance < 0.62:
            return f"{self._fresh()} = moved({name}, {self._layout(t.dim())})"
        write = self._written(name, t)
        if self._is_undefined(write, name, t):
            return f"{self._fresh()} = {name}.clone()"
        return f"with torch.no_grad(): {write}" if chance > 0.9 else write

    def _is_undefined(self, line, name, t):
        """What is written while it is read, or lies twice in memory, has no one value."""
        others = {other for other in re.findall(r"\bt\d+\b", line) if other != name}
        return repeats(t) or any(overlaps(t, self.names[other]) for other in others)

    def _view(self, name, t):
        d, e = self._dim(t), self._dim(t)
        size = t.shape[d] if t.dim() else 1
        start = self.draw.randrange(size + 1)
        order = self.draw.sample(range(t.dim()), t.dim())
        return self.draw.choice(
            [
                f"{name}.transpose({d}, {e})",
                f"{name}.permute({order})",
                f"{name}.select({d}, {self.draw.randrange(-size, size) if size else 0})",
                f"{name}.narrow({d}, {start}, {self.draw.randrange(size - start + 1)})",
                f"{name}[{self._index(t)}]",
                f"{name}.unfold({d}, {self.draw.randrange(1, 4)}, {self.draw.randrange(1, 3)})",
                f"{name}.expand({[self.draw.randrange(1, 4), *[-1] * t.dim()]})",
                f"{name}.diagonal({self.draw.randrange(-1, 2)}, {d}, {e})",
                f"{name}.unsqueeze({d})",
                f"{name}.squeeze()",
                f"{name}.chunk(3, {d})[0]",
                f"{name}.unbind({d})[-1]",
                f"{name}.flatten()",
                f"{name}.view(-1)",
                f"{name}.reshape({self.draw.choice([2, 3])}, -1)",
                f"{name}.conj()",
                f"{name}.detach()",
                f"{name}.{'real' if t.is_complex() else 'mT'}",
                f"{name}.as_strided({name}.shape, {name}.stride())",
                f"{name}.as_strided({self._strided(t)})",
            ]
        )

    def _strided(self, t):
        """Sizes, strides and an offset of what reaches no further than t does, if that is dense."""
        room, sizes, strides = max(t.numel(), 1), [], []
        for _ in range(self.draw.randrange(3)):
            strides.append(self.draw.randrange(5))
            sizes.append(self.draw.randrange(1, 2 + (room - 1) // strides[-1]) if strides[-1] else 2)
            room -= (sizes[-1] - 1) * strides[-1]
        return f"{sizes}, {strides}, {t.storage_offset() + self.draw.randrange(room)}"

    def _dim(self, t):
        return self.draw.randrange(-t.dim(), t.dim()) if t.dim() else 0

    def _index(self, t):
        parts = []
        for size in t.shape[: self.draw.randrange(t.dim() + 1)]:
            first = self.draw.randrange(-size, size) if size else 0
            places = [self.draw.randrange(-size, size) for _ in range(3)] if size else []
            mask = self._new((size,), "bool")
            parts.append(self.draw.choice([f"{first}", f"{first}:", f"::{self.draw.randrange(1, 4)}", f"{places}", mask, ":"]))
        return ", ".join(parts) or "..."

    def _other(self, t):
        """Something that broadcasts to t."""
        fitting = [n for n in self.tensors if self.names[n].shape == t.shape and self.names[n].dtype == t.dtype]
        shape = [size if self.draw.random() < 0.7 else 1 for size in t.shape]
        return self.draw.choice([*fitting, "2", self._new(shape, kind_of(t))])

    def _computed(self, name, t):
        return self.draw.choice(
            [
                f"{name} * {self._other(t)}",
                f"{name} - {self._other(t)}",
                f"{name}.sum({self._dim(t)})",
                f"torch.cat([{name}, {name}], {self._dim(t)})",
                f"torch.where({self._new(t.shape, 'bool')}, {name}, {self._other(t)})",
                f"{name}[{self._index(t)}]",
                f"{name}.flip({self._dim(t)})",
                f"{name}.clone()",
                *self._chosen(name, t),
            ]
        )

    def _chosen(self, name, t):
        """What depends on several elements, or on which of them is where."""
        d = self._dim(t)
        size = t.shape[d] if t.dim() else 1
        places = [self.draw.randrange(size) for _ in range(self.draw.randrange(1, 5))] if size else []
        index = f"ids({places}, {self._layout(1, pending=False)})"
        lines = [
            f"{name}.roll({self.draw.randrange(-3, 4)}, {d})",
            f"{name}.cumsum({d})",
            f"{name}.index_select({d}, {index})",
            f"{name}.repeat_interleave(2, {d})",
            f"torch.stack([{name}, {name} * 2], {d})",
            f"{name}.mean({d})" if t.is_floating_point() else f"{name}.sum({d}, keepdim=True)",
            f"{name}.prod({d})",
            f"{name}.tril({self.draw.randrange(-1, 2)})" if t.dim() > 1 else f"{name} ** 2",
            f"{name}.movedim({d}, 0).matmul({name}.movedim({d}, -1))" if t.dim() == 2 else f"-{name}",
            f"torch.nn.functional.pad({name}, (1, {self.draw.randrange(3)}))" if t.dim() else f"{name} + 1",
        ]
        if not t.is_complex() and size:
            lines += [
                f"{name}.max({d}).values",
                f"{name}.amin({d})",
                f"{name}.sort({d}, stable=True).values",
                f"{name}.argmax({d})",
                f"{name}.clamp(-1, 1)",
                f"{name}.abs()",
            ]
        return lines

    def _written(self, name, t):
        mask = self._new(t.shape, "bool")
        source = f"like({name}, {self.draw.randrange(99)}, {self._layout(t.dim())})"
        d, e = self._dim(t), self._dim(t)
        shapes = [f"{name}.transpose_({d}, {e})", f"{name}.unsqueeze_({d})", f"{name}.squeeze_()", f"{name}.resize_({t.numel() // 2}, 2)"]
        if t.requires_grad and self._is_leaf(name):  # the shape of its gradient is that of its first use
            shapes = []
        rows = f"{source}.narrow({d}, 0, {min(1, t.shape[d] if t.dim() else 0)})" if t.dim() else source
        last = [t.shape[d] - 1][: t.shape[d]] if t.dim() else [0]
        ids = f"ids({last}, {self._layout(1, pending=False)})"
        # By other data, plain views of gradients are found in memory that they do not lie in.
        data = [] if t.requires_grad and not self._is_leaf(name) else [f"{name}.data = {source}"]
        places = [f"{name}.index_fill_({d}, torch.tensor([0]), 3)"] if t.numel() > 0 else []
        return self.draw.choice(
            [
                *shapes,
                *places,
                f"{name}.add_({self._other(t)})",
                f"{name}.mul_({self._other(t)})",
                f"{name}.copy_({self._other(t)})",
                f"{name}[{self._index(t)}] = {self.draw.randrange(9)}",
                f"{name}[{self._index(t)}] += 1",
                f"{name}.masked_fill_({mask}, 2)",
                f"{name}.masked_scatter_({mask}, {source})",
                f"{name}.fill_diagonal_(1)",
                f"{name}.zero_()",
                f"{name}.neg_()",
                f"{name}.index_add_({d}, {ids}, {rows}, alpha=2)",
                f"{name}.index_copy_({d}, {ids}, {rows})",
                f"{name}.scatter_({d}, torch.zeros_like({rows}, dtype=torch.int64), {rows})" if t.dim() == 1 else f"{name}.sub_(1)",
                f"{name}.addcmul_({self._other(t)}, {source})" if t.dim() else f"{name}.mul_(3)",
                f"{name}.lerp_({source}, 0.5)" if t.is_floating_point() else f"{name}.fill_(2)",
                f"torch.mul({name}, {self._other(t)}, out={name})",
                *data,
            ]
        )

    def _differentiate(self):
        results = [n for n in self.tensors if self.names[n].requires_grad and not self._is_leaf(n)]
        if not results:
            return
        last = self.draw.choice(results)
        if self.draw.random() < 0.3:
            # Looked at first: torch itself has no memory safety for hooks of views that were written since.
            self._add(f"{last}.grad_fn, {last}.register_hook(lambda g: g * 2)")
        if self.draw.random() < 0.3:
            self._differentiate_twice(last)
        for again in range(self.draw.choice([1, 1, 2])):
            layout = self._layout(self.names[last].dim())
            self._add(f"{last}.backward(like({last}, {5 + again}, {layout}), retain_graph=True)")
            for leaf in [n for n in self.tensors if self._is_leaf(n) and self.names[n].grad is not None]:
                self._add(f"grad_of_{leaf} = {leaf}.grad")
                if self.draw.random() < 0.3:
                    self._add(self.draw.choice([f"{leaf}.grad.mul_(3)", f"{leaf}.grad = {leaf}.grad.clone()", f"{leaf}.grad.zero_()"]))

    def _differentiate_twice(self, last):
        for leaf in [n for n in self.tensors if self._is_leaf(n) and self.names[n].requires_grad][:1]:
            first = f"({last} * {last}).sum()" if not self.names[last].is_complex() else f"({last} * {last}.conj()).real.sum()"
            self._add(f"first_of_{leaf}, = torch.autograd.grad({first}, {leaf}, create_graph=True)")
            if f"first_of_{leaf}" in self.names and self.names[f"first_of_{leaf}"].requires_grad:
                squared = f"(first_of_{leaf} * first_of_{leaf}.conj()).real.sum()"
                self._add(f"second_of_{leaf}, = torch.autograd.grad({squared}, {leaf}, retain_graph=True)")

    def _is_leaf(self, name):
        try:
            return self.names[name].is_leaf
        except RuntimeError:  # a view that autograd does not know any more
            return False

    def complaint(self, mesh, looks_each_time):
        """What differs in a run on the mesh, or None. What is refused with words ends the run."""
        names = distributed_names(mesh)
        for number, (line, (error, states)) in enumerate(zip(self.lines, self.expected)):
            try:
                exec(line, names)
            except NotImplementedError as refused:
                return None if "meshtorch:" in str(refused) and "do:" in str(refused) else f"{line}: {refused}"
            except Exception as caught:
                if error is None:
                    return f"{line}: {caught}"
                continue
            if error is not None:
                return f"{line}: no error, where a plain run has {error!r}"
            for name, (value, needs_grad, place) in states.items():
                names[name].requires_grad  # autograd looks at views now, as it did in the plain run
                if looks_each_time or number == len(self.lines) - 1:
                    if not is_dtensor(names[name]):
                        return f"after {line}: {name} is plain"
                    actual = state_of(names[name])
                    # A derivative that is zero by its formula may have none of its own in a plain run.
                    is_known = actual[1] == needs_grad or name.startswith("first_of_")
                    if actual[0].shape != value.shape or actual[0].dtype != value.dtype or not is_known:
                        return f"after {line}: {name} is {actual}, not {(value, needs_grad)}"
                    if not torch.allclose(actual[0], value, rtol=1e-9, atol=1e-9, equal_nan=True):
                        return f"after {line}: {name} is {actual[0]}, not {value}"
                    if place is not None and place_of(names[name]) != place:
                        return f"after {line}: {name} lies at {place_of(names[name])}, not {place}"
        return None
