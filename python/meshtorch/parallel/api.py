"""The name under which PyTorch documents parallelize_module."""

from .plan import parallelize_module

__all__ = ["parallelize_module"]
