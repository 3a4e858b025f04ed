"""torch.distributions of distributed parameters: what they make and draw inside is distributed too."""

import functools

from torch.distributions import Distribution

from ._made_inside import MadeInside, mesh_of

_METHODS = ("__init__", "cdf", "entropy", "enumerate_support", "expand", "icdf", "log_prob", "rsample", "sample")


def _with_tensors_of_its_mesh(plain):
    @functools.wraps(plain)
    def call(self, *args, **kwargs):
        mesh = mesh_of((*self.__dict__.values(), *args, *kwargs.values()))
        if mesh is None:
            return plain(self, *args, **kwargs)
        with MadeInside(mesh):
            return plain(self, *args, **kwargs)

    return call


def _kinds(kind):
    yield kind
    for part in kind.__subclasses__():
        yield from _kinds(part)


def install():
    for kind in set(_kinds(Distribution)):
        for name in _METHODS:
            if name in vars(kind):
                setattr(kind, name, _with_tensors_of_its_mesh(vars(kind)[name]))
