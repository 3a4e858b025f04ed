"""What one operator costs from Python: plain tensors, meshtorch's, and PyTorch's DTensor, in one run.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/python_overhead.py

One rank, so that nothing is communicated; small tensors, so that the work itself is small. Every number is the least of
several rounds in which the three take turns, in microseconds a call.
"""

import argparse
import timeit
import warnings

import meshtorch
import torch
import torch.distributed as dist
import torch.distributed.tensor as theirs
from torch.testing._internal.distributed.fake_pg import FakeStore


def calls_on(split, whole, package, mesh):
    """The calls to time. `split` and `whole` turn a plain tensor into what they work on."""
    a, b, factor = split(torch.ones(4, 4)), split(torch.ones(4, 4)), whole(torch.ones(4, 4))
    calls = {
        "add": lambda: torch.add(a, b),
        "mm": lambda: torch.mm(a, factor),
        "relu": lambda: torch.relu(a),
        "view": lambda: a.view(4, 2, 2),
        "add_": lambda: a.add_(b),
        "sum": lambda: a.sum(),
    }
    if package is not None:
        local, rows, replicated = torch.ones(4, 4), [package.Shard(0)], [package.Replicate()]
        calls["from_local"] = lambda: package.DTensor.from_local(local, mesh, rows)
        calls["to_local"] = lambda: a.to_local()
        calls["redistribute"] = lambda: a.redistribute(mesh, replicated)
    return calls


def measure(kinds, rounds, number):
    """{call: {kind: microseconds}}"""
    best = {}
    for _ in range(rounds):
        for kind, calls in kinds.items():
            for name, call in calls.items():
                spent = timeit.timeit(call, number=number) / number * 1e6
                row = best.setdefault(name, {})
                row[kind] = min(spent, row.get(kind, spent))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--number", type=int, default=2000, help="calls in a round")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    our_mesh = meshtorch.init_device_mesh("cpu", (1,))
    their_mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    kinds = {"plain": calls_on(lambda t: t, lambda t: t, None, None)}
    for kind, package, mesh in (("meshtorch", meshtorch, our_mesh), ("PyTorch", theirs, their_mesh)):
        kinds[kind] = calls_on(
            lambda t: package.distribute_tensor(t, mesh, [package.Shard(0)]),
            lambda t: package.distribute_tensor(t, mesh, [package.Replicate()]),
            package,
            mesh,
        )
    table = measure(kinds, options.rounds, options.number)
    print(f"{'us a call':14}{'plain':>10}{'meshtorch':>12}{'PyTorch':>10}{'meshtorch over plain':>23}")
    for name, row in table.items():
        plain = row.get("plain")
        cells = [f"{plain:10.2f}" if plain else " " * 10, f"{row['meshtorch']:12.2f}", f"{row['PyTorch']:10.2f}"]
        print(f"{name:14}" + "".join(cells) + (f"{row['meshtorch'] - plain:23.2f}" if plain else ""))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
