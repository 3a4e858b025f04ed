"""Programs drawn from a seed in which some ranks write their shards by themselves, in ways that nobody sees."""

import random

import torch
from meshtorch import DTensor, Partial, Replicate, Shard

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
    "a view": lambda x: x.view(-1).to_local().numpy(),
    "_local_tensor": lambda x: x._local_tensor.numpy(),
}


class Held:
    """A tensor on the mesh, with what every rank of it holds."""

    def __init__(self, x, placement, parts, given):
        self.x, self.placement, self.parts, self.given = x, placement, parts, given
        self.views = []

    def whole(self):
        if self.placement.is_partial():
            return torch.stack(self.parts).sum(0)
        return torch.cat(self.parts) if self.placement.is_shard() else self.parts[0].clone()


class Acts:
    """One program; every rank runs all of it, and knows what all others do."""

    def __init__(self, seed, rank, mesh):
        self.draw, self.rank, self.mesh = random.Random(seed), rank, mesh
        self.held, self.lines, self.seed = [], [], seed

    def complaint(self):
        with torch.inference_mode(self.draw.random() < 0.3):
            for _ in range(2):
                self._new()
            for _ in range(self.draw.randrange(6, 16)):
                step = self.draw.choice([self._read, self._read, self._act, self._act, self._write, self._view, self._new])
                problem = step(self.draw.choice(self.held)) if step != self._new else step()
                if problem:
                    return "\n".join([f"seed {self.seed}", *self.lines, problem])
        return None

    def _new(self):
        shape = self.draw.choice(SHAPES)
        placement = self.draw.choice([Partial(), Partial(), Shard(0), Shard(0), Replicate()])
        size, seed = self.mesh.size(), self.draw.randrange(999)
        whole = torch.randn((size, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if placement.is_partial():
            parts = list(whole)
        elif placement.is_shard():
            parts = [*whole[0].split(-(-shape[0] // size))]
            parts += [whole[0][:0]] * (size - len(parts))
        else:
            parts = [whole[0].clone() for _ in range(size)]
        parts = [part.clone() for part in parts]
        given = parts[self.rank].clone()
        x = DTensor.from_local(given, self.mesh, [placement], shape=torch.Size(shape), stride=(shape[1], 1))
        if self.draw.random() < 0.5:  # in memory of the library's own
            x, given = x * 1, None
        self.lines.append(f"t{len(self.held)} = {placement} of {shape}, {'made inside' if given is None else 'given'}")
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
        ranks = range(self.mesh.size())
        writers = [r for r in ranks if self.draw.random() < 0.5] if not held.placement.is_replicate() else ranks
        way = self.draw.choice([*WAYS, "the tensor that was given"])
        factor, term = self.draw.choice([(1, 0), (1, 2), (2, 0), (-1, 1)])
        self.lines.append(f"ranks {[*writers]} write {self._name(held)} by {way}: * {factor} + {term}")
        if way not in WAYS and held.given is None:
            return
        if self.rank in writers:
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
