"""The name under which PyTorch documents loss_parallel."""

from .._C import loss_parallel

__all__ = ["loss_parallel"]
