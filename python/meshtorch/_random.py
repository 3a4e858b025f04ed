"""Seeds of distributed tensors, under the names of torch.distributed.tensor._random."""

from . import _C


def manual_seed(seed, device_mesh=None):
    """Seeds what distributed tensors draw, on every mesh: the numbers do not depend on the mesh."""
    _C.manual_seed(seed)


def is_rng_supported_mesh(device_mesh):
    """True: random numbers are those of one device on any mesh."""
    return True
