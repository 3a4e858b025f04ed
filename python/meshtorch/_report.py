"""The report page: one file that shows how a module is split, what it sends, and where time and memory go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import _C
from .parallel.plan import _matches
from .parallel.style import ParallelStyle

if TYPE_CHECKING:
    from .debug import CommDebugMode


class DecisionLog:
    """Records why data moved on this rank, inside `with`: every redistribution with who asked for it, and for an
    operator's own choice the options with their prices.

    >>> from meshtorch.debug import DecisionLog
    >>> x = meshtorch.ones(4, device_mesh=mesh, placements=[meshtorch.Shard(0)])
    >>> with DecisionLog() as log:
    ...     _ = x.redistribute(placements=[meshtorch.Replicate()])
    >>> "[S(0)] -> [R]" in log.table()
    True
    """

    def __init__(self) -> None:
        self._log: Any = None

    def __enter__(self) -> DecisionLog:
        from .debug import _watch

        self._log = _C.DecisionLog()
        _watch.begin()
        return self

    def __exit__(self, *error):
        from .debug import _watch

        _watch.end()
        self._log.stop()

    def table(self) -> str:
        """Returns what was recorded, as text; equal redistributions are one line."""
        return self._log.table()


class TraceMode:
    """Records this rank's operators, collectives and waits, inside `with`.

    >>> import os, tempfile
    >>> from meshtorch.debug import TraceMode
    >>> with TraceMode() as trace:
    ...     _ = meshtorch.ones(4, device_mesh=mesh, placements=[meshtorch.Shard(0)]).full_tensor()
    >>> trace.save(os.path.join(tempfile.gettempdir(), "trace.json"))  # every rank calls it
    """

    def __init__(self) -> None:
        self._trace: Any = None

    def __enter__(self) -> TraceMode:
        from .debug import _watch

        self._trace = _C.TraceMode()
        _watch.begin()
        return self

    def __exit__(self, *error):
        from .debug import _watch

        _watch.end()
        self._trace.stop()

    def save(self, file: str | PathLike[str]) -> None:
        """Writes the events of all ranks for ui.perfetto.dev. Every rank must call it; the first writes."""
        self._trace.save(str(file))

    def gather(self) -> list[str]:
        """Returns what each rank recorded, for write_report. Every rank must call it."""
        return self._trace.gather()


def _bytes_here(tensor):
    if tensor is None:
        return 0
    local = _C.local_tensor(tensor) if _C.is_dtensor(tensor) else tensor
    return local.numel() * local.element_size()


def memory_of(module: nn.Module, optimizer: Optimizer | None = None, activations: int = 0) -> dict[str, int]:
    """Returns the bytes of this rank's parameters, of the gradients that they have now, and of the optimizer's state.

    >>> from meshtorch.debug import memory_of
    >>> memory_of(torch.nn.Linear(2, 3))["parameters"]
    36
    """
    parameters = list(module.parameters())
    states = optimizer.state.values() if optimizer is not None else []
    return {
        "rank": _C.get_rank(),
        "parameters": sum(map(_bytes_here, parameters)),
        "gradients": sum(_bytes_here(p.grad) for p in parameters),
        "optimizer": sum(_bytes_here(value) for state in states for value in state.values() if hasattr(value, "numel")),
        "activations": activations,
    }


def gather_memory(mine: dict[str, int]) -> list[dict[str, int]]:
    """Returns what every rank gives, in their order, for write_report. Every rank must call it.

    >>> from meshtorch.debug import gather_memory, memory_of
    >>> [one["rank"] for one in gather_memory(memory_of(torch.nn.Linear(2, 3)))]
    [0, 1]
    """
    return _C.gather_memory(mine)


def estimate_memory(
    module: nn.Module,
    optimizer_numbers: int = 2,
    activations: int = 0,
    *,
    mesh: _C.DeviceMesh | None = None,
    groups: Sequence[str] = (),
    replicate: bool = False,
    param_dtype: torch.dtype | None = None,
) -> list[dict[str, int]]:
    """Returns the bytes that each rank of the module's mesh keeps in training; AdamW has two numbers for each parameter.

    With a mesh: as if fully_shard were called on the modules that `groups` names, as in ["layers.*"], and on the whole, or
    replicate on the whole. Parameters may be on the meta device.

    >>> from meshtorch.debug import estimate_memory
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(1000, 1000, bias=False)
    >>> [one["parameters"] for one in estimate_memory(model, mesh=mesh)]
    [2000000, 2000000]
    """
    if mesh is not None:
        return _C._estimate_data_parallel(
            list(module.named_parameters()), mesh, list(groups), replicate, param_dtype, optimizer_numbers, activations
        )
    return _C.estimate_memory(list(module.parameters()), optimizer_numbers, activations)


def _styles_by_module(module, plan):
    """{module: text of its styles}"""
    styles = {}
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    for pattern, style in (plan or {}).items():
        for part in _matches(module, pattern.split(".") if pattern else []):
            styles[part] = styles[part] + ", then " + repr(style) if part in styles else repr(style)
    return styles


def write_report(
    path: str | PathLike[str],
    module: nn.Module | None = None,
    *,
    title: str | None = None,
    facts: Mapping[str, object] | None = None,
    mesh: _C.DeviceMesh | None = None,
    plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    comm: CommDebugMode | None = None,
    comm_of: str | None = None,
    decisions: DecisionLog | None = None,
    traces: Sequence[str] | None = None,
    steps: Sequence[Mapping[str, float]] | None = None,
    memory: Sequence[Mapping[str, int]] | None = None,
    memory_note: str | None = None,
) -> None:
    """Writes the report page. One rank calls it; nothing is communicated. Sections of which nothing is given are left out.

    facts: {name: value} below the title. plan: as for parallelize_module. comm: a CommDebugMode; comm_of: what it counted.
    decisions: a DecisionLog. traces: of TraceMode.gather(). steps: dicts with step, loss, seconds, tokens_per_second,
    communication_share, as many of them as are known. memory: of gather_memory or estimate_memory.

    >>> import os, tempfile
    >>> from meshtorch.debug import write_report
    >>> if rank == 0:
    ...     write_report(os.path.join(tempfile.gettempdir(), "run.html"), torch.nn.Linear(2, 3), title="My net")
    """
    given = {
        "title": title or (type(module).__name__ if module is not None else None),
        "facts": [(str(name), str(value)) for name, value in (facts or {}).items()],
        "mesh": mesh,
        "comm": comm._mode if comm is not None else None,
        "comm_of": comm_of,
        "decisions": decisions._log if decisions is not None else None,
        "traces": traces,
        "steps": steps,
        "memory": memory,
        "memory_note": memory_note,
    }
    if module is not None:
        styles = _styles_by_module(module, plan)
        given["parts"] = [(name, type(part).__name__, styles.get(part, "")) for name, part in module.named_modules()]
        given["parameters"] = list(module.named_parameters())
    _C.write_report(str(path), {name: value for name, value in given.items() if value is not None})
