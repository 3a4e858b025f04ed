"""Tensor-parallel plans for torch.nn modules, under the names of torch.distributed.tensor.parallel."""

from .._C import loss_parallel
from .plan import load_plan, parallelize_module, plan_from_json, plan_to_json
from .style import (
    ColwiseParallel,
    NoParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

__all__ = [
    "ColwiseParallel",
    "NoParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "load_plan",
    "loss_parallel",
    "parallelize_module",
    "plan_from_json",
    "plan_to_json",
]
