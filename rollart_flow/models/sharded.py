"""Tensors that are split over processes, told apart without loading torch's module for them.

The module takes half a second of CPU and 40 MB, which a process alone need not spend.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is split over processes: where it is, its module is loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
