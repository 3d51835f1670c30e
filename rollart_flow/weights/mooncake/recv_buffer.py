"""Registered memory that versions are read into, one after the other.

Newly allocated memory costs more than the transfer into it, and registering it with a network card
is slow. The memory is therefore kept and reused when no tensor of the previous version is alive.
The invariant: memory is never overwritten while a tensor uses it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.mooncake.client import MooncakeClient


class RecvBuffer:
    """Memory for one version at a time; a second version held at the same time gets additional
    memory.

    Args:
        client: client that registers the memory while it is open.
    """

    def __init__(self, client: MooncakeClient) -> None:
        self._client = client
        self._memory: NDArray[np.uint8] | None = None
        self._free = False

    def take(self, size: int) -> torch.Tensor:
        """Return registered bytes for exclusive use while a tensor on them is alive.

        Raises:
            WeightsError: the memory cannot be registered.
        """
        import torch

        if self._memory is None or self._memory.size < size or not self._free:
            memory = np.empty(size, np.uint8)
            self._client.register(memory.ctypes.data, size)
            if self._memory is not None:
                self._client.forget(self._memory.ctypes.data)
            self._memory = memory
        self._free = False
        lent = self._memory[:size]
        weakref.finalize(lent, self._came_back, self._memory).atexit = False
        return torch.from_numpy(lent)

    def _came_back(self, memory: NDArray[np.uint8]) -> None:
        self._free = self._free or memory is self._memory
