"""The type of distributed tensors: to a type checker DTensor is a class below torch.Tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._C import DeviceMesh, DTensorSpec, Placement

class DTensor(Tensor):
    def __new__(cls, local_tensor: Tensor, spec: DTensorSpec, *, requires_grad: bool = False) -> DTensor: ...
    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> DTensor: ...
    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor: ...
    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor: ...
    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> DTensor: ...
    @property
    def placements(self) -> tuple[Placement, ...]: ...
    @property
    def device_mesh(self) -> DeviceMesh: ...
    @property
    def _local_tensor(self) -> Tensor: ...
    @property
    def _spec(self) -> DTensorSpec: ...

def with_local(tensor: DTensor, local: Tensor) -> DTensor: ...
def install() -> None: ...
