"""The world of ranks that meshtorch works in: that of torch.distributed where there is one."""

import atexit
import os
import sys
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _C

# The default group whose world was adopted, to notice that another took its place.
_adopted = None
# Groups of the user's, by their ranks.
_offered = {}
# Where functions lie that are not the program's.
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in (torch.__file__, __file__))
# How the groups of mesh axes were asked for first: by (name of the axis, ranks), (backend, options), None for what is usual.
_asked = {}
# Those that were made for such an axis alone.
_own = {}


def _make_shm(wanted, _):
    ranks = list(wanted.global_ranks_in_group)
    return _C.make_shm_backend(
        wanted.store, wanted.group_rank, ranks, wanted.group_size, wanted.timeout.total_seconds()
    )


# torch.distributed.init_process_group("shm") after `import meshtorch`.
if dist.is_available() and "shm" not in dist.Backend.backend_list:
    dist.Backend.register_backend("shm", _make_shm, extended_api=True, devices=["cpu"])


def _is_torch_initialized():
    return dist.is_available() and dist.is_initialized()


def ensure():
    """Joins the world of torch.distributed, or else one that the environment describes."""
    global _adopted
    if _is_torch_initialized():
        default = dist.group.WORLD
        if default is _adopted and _C.is_world_of_torch():
            return
        leave()
        _adopted = default
        rank = dist.get_rank()
        _C.adopt_world(dist.get_backend(), rank, dist.get_world_size(), int(os.environ.get("LOCAL_RANK", rank)))
    elif _C.is_world_of_torch():
        leave()
        _C.init_process_group()
    elif not _C.is_initialized():
        _C.init_process_group()


def _join_torch():
    """Adopts the world of torch.distributed, or leaves it if it is gone; a rank of meshtorch's own world stays in that."""
    if _C.is_initialized() and not _C.is_world_of_torch():
        return
    if _is_torch_initialized():
        ensure()
    elif _C.is_world_of_torch():
        leave()


def is_initialized() -> bool:
    """Returns whether this thread or process is a rank: of a world of meshtorch's, or of torch.distributed.

    >>> meshtorch.is_initialized()
    True
    """
    _join_torch()
    return _C.is_initialized()


def get_rank() -> int:
    """Returns the number of this rank in its world. On ranks that are threads it is the thread's.

    >>> meshtorch.get_rank() in (0, 1)
    True
    """
    _join_torch()
    return _C.get_rank()


def get_world_size() -> int:
    """Returns the number of ranks in the world of this rank.

    >>> meshtorch.get_world_size()
    2
    """
    _join_torch()
    return _C.get_world_size()


def get_local_rank() -> int:
    """Returns the number of this rank among those of its machine.

    >>> meshtorch.get_local_rank() == meshtorch.get_rank()
    True
    """
    _join_torch()
    return _C.get_local_rank()


def get_backend() -> str:
    """Returns the backend of the world: "threads", "shm", "gloo", "nccl" or "fake".

    >>> meshtorch.get_backend()
    'threads'
    """
    _join_torch()
    return _C.get_backend()


def place_of_call(depth):
    """The innermost functions of the program that run in this thread: "step (train.py:12), called by main (train.py:80)"."""
    functions, frame = [], sys._getframe()
    while frame is not None and len(functions) < depth:
        code = frame.f_code
        if not code.co_filename.startswith(_LIBRARIES):
            name = getattr(code, "co_qualname", code.co_name)
            functions.append(f"{name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(functions)


def offer_group(group):
    """Lets meshes use this group of torch.distributed for its ranks, rather than a new one."""
    ensure()
    _offered[tuple(dist.get_process_group_ranks(group))] = group


def _group_named(name):
    return next((group for group, given in c10d._world.pg_names.items() if given == name), None)


def _fields(options):
    """What can be read of the options of a backend, which are equal if their fields are."""
    names = [name for name in dir(options) if not name.startswith("__")]
    return type(options), {name: value for name in names if not callable(value := getattr(options, name))}


def _is_same_request(one, other):
    """Whether two (backend, options) ask for the same group."""
    usual = c10d._world.pg_map[dist.group.WORLD][0]
    (backend, options), (other_backend, other_options) = one, other
    return (backend or usual) == (other_backend or usual) and _fields(options) == _fields(other_options)


def take_requests(axes):
    """Makes the groups of mesh axes that ask for a backend or options of their own. `axes`: {(name, ranks): (backend, options, description)}
    of all axes that this rank is on. What an axis of a name and ranks was given first, it keeps."""
    for (name, ranks), (backend, options, description) in axes.items():
        known = _asked.setdefault((name, ranks), (backend, options))
        if (backend, options) == (None, None) or len(ranks) == 1:
            continue  # a group of one rank sends nothing, whatever its backend
        if not _is_same_request((backend, options), known):
            raise ValueError(
                f"meshtorch: backend_override asks for another group of ranks {list(ranks)}, which have one already on the axis {name}\n"
                f"  asked: {backend or 'the usual backend'}, options {options}\n"
                f"  there: {known[0] or 'the usual backend'}, options {known[1]}\n"
                "  do: give backend_override to the first mesh that has these ranks on an axis of this name"
            )
        if (name, ranks) not in _own and not _is_same_request((backend, options), (None, None)):
            _own[name, ranks] = _new_group(list(ranks), name, backend, options, description)
            _C.set_group_of_axis(name, list(ranks), _own[name, ranks])


def _new_group(ranks, axis="", wanted=None, options=None, description=None):
    """Only the members come here, and nobody else may have to take part.

    So the name, under which members find each other, follows from the ranks alone: torch.distributed.new_group counts
    the groups that a rank has joined, and ranks with another past would wait for each other for ever.
    """
    name = "meshtorch:" + ",".join(map(str, ranks)) + (f":{axis}:{wanted}" if axis else "")
    group = _group_named(name)  # of an earlier stay in this world
    if group is not None and options is None:
        return group
    usual, store = c10d._world.pg_map[dist.group.WORLD]
    backend = wanted or usual
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        backend,
        store,
        c10d.GroupName(name),
        backend_options=options,
        timeout=c10d._get_default_timeout(dist.Backend(backend)),
        group_desc=description or "meshtorch",
    )
    c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    return group


def make_group(ranks):
    """The group of these ranks, in this order, in torch.distributed. Called by the library on every member."""
    ranks = list(ranks)
    if tuple(ranks) in _offered:
        return _offered[tuple(ranks)]
    if ranks == list(range(dist.get_world_size())):
        return dist.group.WORLD
    return _new_group(ranks)


def leave():
    """Lets go of the groups of torch.distributed."""
    global _adopted
    _adopted = None
    _offered.clear()
    _asked.clear()
    _own.clear()
    _C.leave_adopted_world()


@atexit.register
def _end():
    _C.leave_adopted_groups()
    leave()
