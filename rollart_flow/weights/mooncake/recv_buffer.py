"""Registered memory that versions are read into, one after the other.

Memory that the system gives anew costs more than the transfer into it, and a network card takes
long to register it. So it is kept, and used again once no tensor of the version before is left. The
invariant: memory is never written while a tensor lies in it.
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
    """Memory for one version at a time; for another one beside it, there is more until it is gone.

    Args:
        client: with which it is registered, for as long as that is open.
    """

    def __init__(self, client: MooncakeClient) -> None:
        self._client = client
        self._memory: NDArray[np.uint8] | None = None
        self._free = False

    def take(self, size: int) -> torch.Tensor:
        """Registered bytes that nobody else has; theirs as long as a tensor on them lives.

        Raises:
            WeightsError: they cannot be registered.
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
