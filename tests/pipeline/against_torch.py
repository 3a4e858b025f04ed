"""Compares meshtorch's tables of schedules with those that torch.distributed.pipelining computes: against_torch.py PRINT_TABLES"""

import itertools
import subprocess
import sys

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _Action

STAGES = {"GPipe": [1], "1F1B": [1], "Interleaved1F1B": [2, 3], "LoopedBFS": [2, 3], "InterleavedZeroBubble": [2, 3],
          "ZBVZeroBubble": [2], "DualPipeV": [2]}
SIZES = [(name, ranks, microbatches, each) for name, stages in STAGES.items()
         for ranks, microbatches, each in itertools.product([1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 6, 8, 10, 12, 16, 17, 24], stages)
         if name != "1F1B" or microbatches >= ranks]  # PyTorch's table of fewer has forwards of micro-batches that do not exist


def pytorch_table(name, ranks, microbatches, each):
    """The actions that compute, or None if PyTorch refuses the size."""
    try:
        rows = get_schedule_ops(name, ranks, microbatches, each)
    except ValueError:
        return None
    rows = [[a for a in row if a is not None and a.is_compute_op] for row in rows]
    if name == "1F1B":  # PyTorch's table counts the forwards of the last rank from 1, unlike the schedule that it runs
        rows[-1] = [a._replace(microbatch_index=a.microbatch_index - 1) if a.computation_type.value == "F" else a for a in rows[-1]]
    return rows


def main():
    requests = "\n".join(" ".join(map(str, size)) for size in SIZES)
    printed = subprocess.run([sys.argv[1]], input=requests, capture_output=True, text=True, check=True).stdout
    tables = printed.split("end\n")[:-1]
    assert len(tables) == len(SIZES), (len(tables), len(SIZES))
    compared, different = 0, []
    for size, text in zip(SIZES, tables):
        ours = None if text == "refused\n" else [[_Action.from_str(entry) for entry in line.split(",")] for line in text.splitlines()]
        if ours != pytorch_table(*size):
            different.append(size)
        compared += ours is not None
    for size in different:
        print("{}: {} ranks, {} micro-batches, {} stages on a rank differ from PyTorch's".format(*size))
    print(f"{compared} tables compared, {len(different)} differ")
    sys.exit(bool(different) or compared < 400)


if __name__ == "__main__":
    main()
