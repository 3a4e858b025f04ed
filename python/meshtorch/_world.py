"""The world of ranks that meshtorch works in: that of torch.distributed where there is one."""

import atexit
import os

import torch.distributed as dist

from . import _C

# The default group whose world was adopted, to notice that another took its place.
_adopted = None
# Groups of the user's, by their ranks.
_offered = {}


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


def offer_group(group):
    """Lets meshes use this group of torch.distributed for its ranks, rather than a new one."""
    ensure()
    _offered[tuple(dist.get_process_group_ranks(group))] = group


def make_group(ranks):
    """The group of these ranks in torch.distributed. Called by the library on every member."""
    ranks = list(ranks)
    if tuple(ranks) in _offered:
        return _offered[tuple(ranks)]
    if ranks == list(range(dist.get_world_size())):
        return dist.group.WORLD
    if ranks != sorted(ranks):
        raise ValueError(
            f"meshtorch: the ranks {ranks} along an axis of a mesh are not in ascending order, and torch.distributed "
            "sorts the ranks of a group\n  do: give the ranks in ascending order, or let meshtorch make the world: "
            "do not call torch.distributed.init_process_group"
        )
    # Only the members come here: nobody else may have to take part.
    return dist.new_group(ranks, use_local_synchronization=True)


def leave():
    """Lets go of the groups of torch.distributed."""
    global _adopted
    _adopted = None
    _offered.clear()
    _C.leave_adopted_world()


atexit.register(leave)
