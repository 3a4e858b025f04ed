"""Programs drawn from a seed in which some ranks write their shards by themselves, in ways that nobody sees."""

import random
import threading

import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.parallel import loss_parallel

SHAPES = [(4, 3), (4, 3), (5, 2), (7, 3), (1, 3)]
READS = [torch.relu, torch.exp, torch.abs, torch.sin, lambda t: t * t, lambda t: t.clamp(-2, 2)]
VIEWS = [
    lambda t: t[0],
    lambda t: t[-1],
    lambda t: t[: (t.shape[0] + 1) // 2],
    lambda t: t.unbind(0)[0],
    lambda t: t[0].view(1, -1),
    lambda t: t[0][1:],
    lambda t: t.narrow(0, t.shape[0] // 2, 1),
]


def same_storage(local):
    return torch.empty(0, dtype=local.dtype).set_(local.untyped_storage(), local.storage_offset(), local.shape, local.stride())


# How a program reaches the memory of its shard; each gives something that can be multiplied and added to in place.
WAYS = {
    "to_local()": lambda x: x.to_local(),
    "numpy": lambda x: x.to_local().numpy(),
    "data": lambda x: x.to_local().data,
    "data of the tensor": lambda x: x.data.to_local().numpy(),
    "dlpack": lambda x: torch.from_dlpack(x.to_local()).numpy(),
    "storage": lambda x: same_storage(x.to_local()).numpy(),
    "a view": lambda x: x.unsqueeze(-1).to_local().numpy(),
    "_local_tensor": lambda x: x._local_tensor.numpy(),
}


class Held:
    """A tensor on the mesh, with what every rank of it holds."""

    def __init__(self, x, placement, parts, given):
        self.x, self.placement, self.parts, self.given = x, placement, parts, given
        self.mesh = x.device_mesh
        self.views = []

    def whole(self):
        if self.placement.is_partial():
            return torch.stack(self.parts).sum(0)
        return torch.cat(self.parts) if self.placement.is_shard() else self.parts[0].clone()


class Acts:
    """One program; every rank runs all of it, and knows what all others do."""

    def __init__(self, seed, rank, meshes, ranks_are_threads):
        """The meshes have the same ranks, each in an order of its own, along one axis."""
        self.ranks_are_threads = ranks_are_threads
        self.draw, self.rank, self.meshes = random.Random(seed), rank, meshes
        self.held, self.lines, self.seed = [], [], seed

    def complaint(self):
        with torch.inference_mode(self.draw.random() < 0.3):
            for _ in range(2):
                self._new()
            for _ in range(self.draw.randrange(6, 16)):
                step = self.draw.choice(
                    [self._read, self._read, self._act, self._act, self._write, self._view, self._new]
                    + [self._norm, self._loss, self._hooked_loss, self._look, self._read_in_two_threads]
                )
                try:
                    problem = step(self.draw.choice(self.held)) if step != self._new else step()
                except RuntimeError as error:
                    problem = str(error)
                if problem:
                    return "\n".join([f"seed {self.seed}", *self.lines, problem])
        return None

    def _new(self):
        shape = self.draw.choice(SHAPES)
        placement = self.draw.choice([Partial(), Partial(), Shard(0), Shard(0), Replicate()])
        mesh = self.draw.choice(self.meshes)
        size, seed = mesh.size(), self.draw.randrange(999)
        whole = torch.randn((size, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if placement.is_partial():
            parts = list(whole)
        elif placement.is_shard():
            parts = [*whole[0].split(-(-shape[0] // size))]
            parts += [whole[0][:0]] * (size - len(parts))
        else:
            parts = [whole[0].clone() for _ in range(size)]
        parts = [part.clone() for part in parts]
        given = parts[mesh.get_local_rank()].clone()
        x = DTensor.from_local(given, mesh, [placement], shape=torch.Size(shape), stride=(shape[1], 1))
        if self.draw.random() < 0.5:  # in memory of the library's own
            x, given = x * 1, None
        origin = "made inside" if given is None else "given"
        self.lines.append(f"t{len(self.held)} = {placement} of {shape} on mesh {self.meshes.index(mesh)}, {origin}")
        self.held.append(Held(x, placement, parts, given))

    def _name(self, held):
        return f"t{self.held.index(held)}"

    def _read(self, held):
        number = self.draw.randrange(len(READS))
        view = self.draw.choice([None, *held.views])
        of = VIEWS[view[0]] if view else lambda t: t
        self.lines.append(f"read {number} of {self._name(held)}{f', view {view[0]}' if view else ''}")
        actual = READS[number](view[1] if view else held.x).full_tensor()
        expected = READS[number](of(held.whole()))
        if not torch.allclose(actual, expected, rtol=1e-9, atol=1e-9):
            return f"rank {self.rank}: {actual}\nis not {expected}"
        return None

    def _act(self, held):
        ranks = range(held.mesh.size())
        writers = [r for r in ranks if self.draw.random() < 0.5] if not held.placement.is_replicate() else ranks
        way = self.draw.choice([*WAYS, "the tensor that was given"])
        factor, term = self.draw.choice([(1, 0), (1, 2), (2, 0), (-1, 1)])
        self.lines.append(f"coordinates {[*writers]} write {self._name(held)} by {way}: * {factor} + {term}")
        if way not in WAYS and held.given is None:
            return
        if held.mesh.get_local_rank() in writers:
            memory = WAYS[way](held.x) if way in WAYS else held.given.numpy()
            memory *= factor
            memory += term
        for r in writers:
            held.parts[r].mul_(factor).add_(term)

    def _write(self, held):
        factor = self.draw.choice([1, 2, -1])
        view = self.draw.choice([None, *held.views]) if not held.placement.is_partial() else None
        self.lines.append(f"{self._name(held)}{f', view {view[0]}' if view else ''} *= {factor}")
        (view[1] if view else held.x).mul_(factor)
        if not view:
            for part in held.parts:
                part.mul_(factor)
            return
        whole = held.whole()
        VIEWS[view[0]](whole).mul_(factor)
        if held.placement.is_shard():
            held.parts = [part.clone() for part in whole.split([len(part) for part in held.parts])]
        else:
            held.parts = [whole.clone() for _ in held.parts]

    def _view(self, held):
        number = self.draw.randrange(len(VIEWS))
        self.lines.append(f"view {number} of {self._name(held)}")
        held.views.append((number, VIEWS[number](held.x)))

    def _look(self, held):
        """All ranks look at their parts of its views, which operators may have written, and some at that of the tensor itself."""
        lookers = [r for r in range(held.mesh.size()) if self.draw.random() < 0.6]
        self.lines.append(f"all look at the views of {self._name(held)}, coordinates {lookers} at itself")
        for _, view in held.views:
            view.to_local()
        me = held.mesh.get_local_rank()
        if me not in lookers:
            return None
        return None if torch.equal(held.x.to_local(), held.parts[me]) else f"{held.x.to_local()} is not {held.parts[me]}"

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _hooked_loss(self, _):
        """A loss of split classes; in between, some ranks write to the gradient of the log-probabilities that they hold."""
        rows, classes = self.draw.randrange(1, 5), self.draw.choice([2, 5, 8])
        numbers = torch.randn((rows, classes), generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
        targets = torch.tensor([self.draw.randrange(classes) for _ in range(rows)])
        mesh = self.draw.choice(self.meshes)
        writers = [r for r in range(mesh.size()) if self.draw.random() < 0.5]
        way = self.draw.choice([way for way in WAYS if way != "a view"])
        self.lines.append(f"loss of {classes} classes, coordinates {writers} write to the gradient in between by {way}")
        plain, split = numbers.clone().requires_grad_(), distribute_tensor(numbers, mesh, [Shard(1)]).requires_grad_()
        width = -(-classes // mesh.size())

        def write_plain(g):
            for r in writers:
                g[:, r * width : (r + 1) * width] *= 3

        def write(g):
            if mesh.get_local_rank() in writers:
                memory = WAYS[way](g)
                memory *= 3

        with loss_parallel():
            for x, hook in ((plain, write_plain), (split, write)):
                chances = torch.nn.functional.log_softmax(x, 1)
                chances.register_hook(hook)
                torch.nn.functional.nll_loss(chances, targets).backward()
        actual = split.grad.full_tensor()
        return None if torch.allclose(actual, plain.grad, rtol=1e-9, atol=1e-9) else f"{actual}\nis not {plain.grad}"

    def _norm(self, _):
        """The norm of tensors on several meshes, as gradients are clipped by it."""
        some = [h for h in self.held if self.draw.random() < 0.7]
        p, foreach = self.draw.choice([1.0, 2.0, float("inf")]), self.draw.choice([None, False])
        self.lines.append(f"norm {p} of {[self._name(h) for h in some]}")
        actual = torch.nn.utils.get_total_norm([h.x for h in some], p, foreach=foreach)
        actual = actual.full_tensor() if isinstance(actual, DTensor) else actual
        expected = torch.nn.utils.get_total_norm([h.whole() for h in some], p)
        return None if torch.allclose(actual, expected.to(actual), rtol=1e-9, atol=1e-9) else f"{actual} is not {expected}"

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _loss(self, _):
        """A loss of split classes, some or all of whose targets are ignored."""
        rows, classes = self.draw.randrange(1, 5), self.draw.choice([2, 5, 8])
        numbers = torch.randn((rows, classes), generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
        ignored = self.draw.choice([0.0, 0.5, 1.0])
        targets = [-100 if self.draw.random() < ignored else self.draw.randrange(classes) for _ in range(rows)]
        options = {"reduction": self.draw.choice(["mean", "sum"]), "label_smoothing": self.draw.choice([0.0, 0.1])}
        self.lines.append(f"loss of {classes} classes, targets {targets}, {options}")
        plain = numbers.clone().requires_grad_()
        expected = torch.nn.functional.cross_entropy(plain, torch.tensor(targets), **options)
        expected.backward()
        split = distribute_tensor(numbers.requires_grad_(), self.draw.choice(self.meshes), [Shard(1)])
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(split, torch.tensor(targets), **options)
            loss.backward()
        for actual, wanted in [(loss, expected), (split.grad, plain.grad)]:
            actual = actual.full_tensor() if isinstance(actual, DTensor) else actual
            if not torch.allclose(actual, wanted, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"{actual}\nis not {wanted}"
        return None

    def _read_in_two_threads(self, held):
        """Two threads of a rank that is a process read one tensor, without communication."""
        if held.placement.is_partial() or self.ranks_are_threads:
            return None
        self.lines.append(f"two threads read {self._name(held)}")
        results = []
        inference = torch.is_inference_mode_enabled()

        def read():
            with torch.inference_mode(inference):
                results.extend(torch.relu(held.x).to_local().clone() for _ in range(20))

        other = threading.Thread(target=read)
        other.start()
        read()
        other.join()
        expected = torch.relu(held.parts[held.mesh.get_local_rank()])
        return None if all(torch.equal(r, expected) for r in results) else f"not all of {results} are {expected}"
