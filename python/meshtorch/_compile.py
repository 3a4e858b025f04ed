"""torch.compile: frames that hold a distributed tensor run as they are, with one warning."""

import warnings

from torch._dynamo import exc
from torch._dynamo.variables import builder

from . import _C

_WORDS = (
    "meshtorch: torch.compile leaves functions of distributed tensors as they are: they run, and are not compiled"
    "\n  do: compile what runs on to_local(), as in a function of local_map, or leave torch.compile out"
)
_has_warned = False


def _leave_uncompiled():
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(_WORDS, stacklevel=2)
    exc.unimplemented(
        gb_type="distributed tensor of meshtorch",
        context="",
        explanation=_WORDS,
        hints=[],
        skip_frame=True,
    )


def install():
    plain = builder.VariableBuilder.wrap_tensor

    def wrap_tensor(self, value):
        return _leave_uncompiled() if _C.is_dtensor(value) else plain(self, value)

    builder.VariableBuilder.wrap_tensor = wrap_tensor
