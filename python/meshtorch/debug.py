"""CommDebugMode and drawings, under the names of torch.distributed.tensor.debug."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
import torch.distributed._functional_collectives  # makes torch.ops.c10d_functional, by which counts are asked for

from . import _C
from ._C import KeptMemory, decision_cache_statistics, explain_redistribute
from ._report import DecisionLog, TraceMode, estimate_memory, gather_memory, memory_of, write_report

if TYPE_CHECKING:
    from ._dtensor import DTensor

__all__ = [
    "CommDebugMode",
    "DecisionLog",
    "KeptMemory",
    "TraceMode",
    "decision_cache_statistics",
    "estimate_memory",
    "explain_redistribute",
    "gather_memory",
    "memory_of",
    "sharding_html",
    "sharding_svg",
    "sharding_table",
    "visualize_sharding",
    "write_report",
]

# The collectives by the names that torch's other namespaces give them.
_C10D_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "recv_": "recv",
}


def _name_of(collective):
    """The name of a collective, given as text or as an operator of torch.ops."""
    name = collective if isinstance(collective, str) else collective.__name__.split(".")[0]
    return _C10D_NAMES.get(name, name)


class CommCounts(dict):
    """Counts by name; an operator of torch.ops.c10d_functional or torch.ops.c10d finds its own, others are 0."""

    def __missing__(self, collective):
        return self.get(collective, 0)

    def __contains__(self, collective):
        return super().__contains__(_name_of(collective))

    def get(self, collective, default=None):
        return super().get(_name_of(collective), default)

    def __eq__(self, other):
        if not isinstance(other, dict):
            return NotImplemented
        return dict(self) == {_name_of(collective): count for collective, count in other.items()}

    def __ne__(self, other):
        return not self == other

    __hash__ = None


def _by_pass(counts):
    return {name: CommCounts(of_pass) for name, of_pass in counts.items()}


class _ModuleWatch:
    """Tells the library which module runs, while a mode of any rank of this process is active."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users = 0
        self._plain_call = None
        self._names = threading.local()
        self._modes = threading.local()

    def begin(self, mode=None):
        """With a mode, each module that runs is noted in it."""
        if mode is not None:
            self._modes.active = [*getattr(self._modes, "active", []), mode]
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._plain_call = torch.nn.Module.__call__
                torch.nn.Module.__call__ = self._wrapped(self._plain_call)

    def end(self, mode=None):
        self._modes.active = [one for one in getattr(self._modes, "active", []) if one is not mode]
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.nn.Module.__call__ = self._plain_call

    def _path_of(self, module):
        """Names count from the outermost module that runs, whose class is the first part."""
        running = getattr(self._names, "of", None)
        if running is None:
            return {part: ".".join(filter(None, [type(module).__name__, name])) for name, part in module.named_modules()}
        if module not in running:
            running[module] = type(module).__name__
        return running

    def _wrapped(self, plain_call):
        # The hooks of a module belong to it: a hook of torch's would run before some of them.
        def call(module, *args, **kwargs):
            outer = getattr(self._names, "of", None)
            names = self._names.of = self._path_of(module)
            for mode in getattr(self._modes, "active", []):
                mode._note(names[module], module)
            _C.enter_module(names[module])
            try:
                return plain_call(module, *args, **kwargs)
            finally:
                _C.leave_module()
                self._names.of = outer

        return call


_watch = _ModuleWatch()


class CommDebugMode:
    """Counts the collectives of this rank, forward and backward, whoever issues them, inside `with`.

    >>> from meshtorch.debug import CommDebugMode
    >>> x = meshtorch.ones(4, device_mesh=mesh, placements=[meshtorch.Shard(0)])
    >>> with CommDebugMode() as comm:
    ...     _ = x.sum().full_tensor()
    >>> comm.get_comm_counts()["all_reduce"], comm.get_total_counts()
    (1, 1)
    """

    def __init__(self) -> None:
        self._mode = _C.CommDebugMode()
        self._parameters: dict[str, dict[str, torch.Tensor]] = {}
        self._sharding: dict[str, tuple[_C.Placement, ...]] = {}

    def __enter__(self) -> CommDebugMode:
        self._mode.restart()
        self._parameters, self._sharding = {}, {}
        _watch.begin(self)
        return self

    def __exit__(self, *error):
        _watch.end(self)
        self._mode.stop()

    def _note(self, path, module):
        """Called when a module runs."""
        for name, parameter in module.named_parameters(recurse=False):
            self._parameters.setdefault(path, {})[name] = parameter.data
            if _C.is_dtensor(parameter):
                self._sharding[f"{path}.{name}"] = parameter.placements

    def get_comm_counts(self) -> CommCounts:
        """Returns {name of the collective: calls}."""
        return CommCounts(self._mode.counts())

    @property
    def comm_counts(self) -> CommCounts:
        """The same as get_comm_counts()."""
        return self.get_comm_counts()

    @property
    def comm_module_counts(self) -> dict[str, dict[str, CommCounts]]:
        """get_module_counts(), and under "Global" what all communicated."""
        return {"Global": _by_pass(self._mode.pass_counts()), **self.get_module_counts()}

    def get_parameter_info(self) -> dict[str, dict[str, torch.Tensor]]:
        """Returns {"Net.up": {"weight": its data, …}, …} of the modules that ran."""
        return self._parameters

    def get_sharding_info(self) -> dict[str, tuple[_C.Placement, ...]]:
        """Returns {"Net.up.weight": its placements, …} of the distributed parameters of modules that ran."""
        return self._sharding

    def get_total_counts(self) -> int:
        """Returns the calls of all collectives."""
        return self._mode.total()

    def get_module_counts(self) -> dict[str, dict[str, CommCounts]]:
        """Returns {"Net.up": {"forward": counts, "backward": counts}, …}"""
        return {path: _by_pass(counts) for path, counts in self._mode.module_counts().items()}

    def table(self) -> str:
        """Returns count, bytes sent and time of each collective, as text."""
        return self._mode.table()

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """Returns a table by module. 0: the collectives by module; 1: parameters, and operators on distributed tensors; 2: operators on plain tensors too,
        shards among them; 3: views, detach and casts too."""
        table = self._mode.module_table(noise_level)
        return table if noise_level < 1 else table + "\n" + self._parameter_table()

    def log_comm_debug_tracing_table_to_file(self, file_name: str = "comm_mode_log.txt", noise_level: int = 3) -> None:
        """Writes that table to a file."""
        with open(file_name, "w") as file:
            file.write(self.generate_comm_debug_tracing_table(noise_level))

    def json(self, noise_level: int = 0) -> str:
        """Returns the table for programs, as JSON."""
        return self._mode.json(noise_level)

    def generate_json_dump(self, file_name: str = "comm_mode_log.json", noise_level: int = 3) -> None:
        """Writes that JSON to a file."""
        with open(file_name, "w") as file:
            file.write(self._mode.json(noise_level))

    def _parameter_table(self):
        """Of the modules that ran."""
        return _C.sharding_table([(f"{path}.{name}", value) for path, of in self._parameters.items() for name, value in of.items()])


def sharding_table(module: torch.nn.Module) -> str:
    """Returns the parameters of a module as text: name, global shape, type, placements and this rank's shape.

    >>> from meshtorch.debug import sharding_table
    >>> linear = meshtorch.distribute_module(torch.nn.Linear(2, 3), mesh)
    >>> "weight" in sharding_table(linear)
    True
    """
    return _C.sharding_table(list(module.named_parameters()))


def visualize_sharding(dtensor: DTensor, header: str = "", use_rich: bool = False) -> None:
    """Prints which rank holds what, on the first rank of the mesh.

    >>> from meshtorch.debug import visualize_sharding
    >>> visualize_sharding(meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)]))  # doctest: +SKIP
    """
    if use_rich:
        raise NotImplementedError("meshtorch: visualize_sharding draws plain text\n  do: leave use_rich out")
    coordinate = dtensor.device_mesh.get_coordinate()
    if dtensor.numel() == 0 or coordinate is None or any(coordinate):
        return
    if header:
        print(header)
    print(_C.draw_sharding(dtensor))


def sharding_svg(dtensor: DTensor) -> str:
    """Returns that drawing as SVG.

    >>> from meshtorch.debug import sharding_svg
    >>> sharding_svg(meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)]))[:4]
    '<svg'
    """
    return _C.draw_sharding_svg(dtensor)


def sharding_html(dtensor: DTensor) -> str:
    """Returns a page that holds the drawing and the table.

    >>> from meshtorch.debug import sharding_html
    >>> "<svg" in sharding_html(meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)]))
    True
    """
    return _C.draw_sharding_html(dtensor)
