"""The report page: one file that shows how a module is split, what it sends, and where time and memory go."""

from . import _C
from .parallel.plan import _matches
from .parallel.style import ParallelStyle


class DecisionLog:
    """Notes why data moved on this rank, inside `with`: every redistribution with who asked for it, and for an
    operator's own choice the options with their prices."""

    def __init__(self):
        self._log = None

    def __enter__(self):
        from .debug import _watch

        self._log = _C.DecisionLog()
        _watch.begin()
        return self

    def __exit__(self, *error):
        from .debug import _watch

        _watch.end()
        self._log.stop()

    def table(self):
        return self._log.table()


class TraceMode:
    """Records this rank's operators, collectives and waits, inside `with`."""

    def __init__(self):
        self._trace = None

    def __enter__(self):
        from .debug import _watch

        self._trace = _C.TraceMode()
        _watch.begin()
        return self

    def __exit__(self, *error):
        from .debug import _watch

        _watch.end()
        self._trace.stop()

    def save(self, file):
        """Writes the events of all ranks for ui.perfetto.dev. Every rank calls it; the first writes."""
        self._trace.save(str(file))

    def gather(self):
        """What each rank recorded, for write_report. Every rank calls it."""
        return self._trace.gather()


def _bytes_here(tensor):
    if tensor is None:
        return 0
    local = _C.local_tensor(tensor) if _C.is_dtensor(tensor) else tensor
    return local.numel() * local.element_size()


def memory_of(module, optimizer=None, activations=0):
    """This rank's parameters, the gradients that they have now, and the optimizer's state, in bytes."""
    parameters = list(module.parameters())
    states = optimizer.state.values() if optimizer is not None else []
    return {
        "rank": _C.get_rank(),
        "parameters": sum(map(_bytes_here, parameters)),
        "gradients": sum(_bytes_here(p.grad) for p in parameters),
        "optimizer": sum(_bytes_here(value) for state in states for value in state.values() if hasattr(value, "numel")),
        "activations": activations,
    }


def gather_memory(mine):
    """What every rank gives, in their order, for write_report. Every rank calls it."""
    return _C.gather_memory(mine)


def estimate_memory(
    module, optimizer_numbers=2, activations=0, *, mesh=None, groups=(), replicate=False, param_dtype=None
):
    """What each rank of the module's mesh keeps when it is trained; AdamW has two numbers for each parameter.

    With a mesh: if fully_shard were called on the modules that `groups` names, as in ["layers.*"], and on the whole, or
    replicate on the whole. Parameters may be on the meta device.
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
    path,
    module=None,
    *,
    title=None,
    facts=None,
    mesh=None,
    plan=None,
    comm=None,
    comm_of=None,
    decisions=None,
    traces=None,
    steps=None,
    memory=None,
    memory_note=None,
):
    """Writes the page. One rank calls it; nothing is communicated. Sections of which nothing is given are left out.

    facts: {name: value} below the title. plan: as for parallelize_module. comm: a CommDebugMode; comm_of: what it counted.
    decisions: a DecisionLog. traces: of TraceMode.gather(). steps: dicts with step, loss, seconds, tokens_per_second,
    communication_share, as many of them as are known. memory: of gather_memory or estimate_memory.
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
