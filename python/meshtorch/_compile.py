"""torch.compile: frames that hold a distributed tensor run as they are, calls that make one break the graph; one warning."""

import warnings

from torch._dynamo import exc
from torch._dynamo.variables import builder, functions

from . import _C

_WORDS = (
    "meshtorch: torch.compile leaves functions of distributed tensors as they are: they run, and are not compiled"
    "\n  do: compile what runs on to_local(), as in a function of local_map, or leave torch.compile out"
)
_has_warned = False


def _leave_uncompiled(*, skip_frame):
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(_WORDS, stacklevel=2)
    exc.unimplemented(
        gb_type="distributed tensor of meshtorch",
        context="",
        explanation=_WORDS,
        hints=[],
        skip_frame=skip_frame,
    )


def _is_of_library(function, args):
    """Whether a compiled function of Python's C interface is the library's, or makes an object of its."""
    made = getattr(args[0], "value", None) if args else None
    modules = [getattr(function, "__module__", None), made.__module__ if isinstance(made, type) else None]
    return _C.__name__ in modules


def install():
    plain_wrap = builder.VariableBuilder.wrap_tensor
    plain_call = functions.SkipFunctionVariable.call_function

    def wrap_tensor(self, value):
        return _leave_uncompiled(skip_frame=True) if _C.is_dtensor(value) else plain_wrap(self, value)

    def call_function(self, tx, args, kwargs):
        if _is_of_library(self.value, args):
            _leave_uncompiled(skip_frame=False)
        return plain_call(self, tx, args, kwargs)

    builder.VariableBuilder.wrap_tensor = wrap_tensor
    functions.SkipFunctionVariable.call_function = call_function
