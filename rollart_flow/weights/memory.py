"""Memory that holds one version of the weights after the other, and copies in it.

Newly allocated memory costs more than a copy or a transfer into it, and registering it with a
network card is slow. The memory is therefore reused once no tensor of the previous version is
alive. The invariant: memory is never overwritten while a tensor uses it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


class ReusedMemory:
    """Memory for one version at a time; a second version held at the same time gets memory of its
    own.

    Args:
        register: called with address and size of newly allocated memory.
        forget: called with the address of memory that is no longer used.
    """

    def __init__(
        self,
        register: Callable[[int, int], None] = lambda address, size: None,
        forget: Callable[[int], None] = lambda address: None,
    ) -> None:
        self._register = register
        self._forget = forget
        self._memory: NDArray[np.uint8] | None = None
        self._free = False

    def take(self, size: int) -> torch.Tensor:
        """Return bytes for exclusive use while a tensor on them is alive.

        Raises:
            WeightsError: the memory cannot be registered.
        """
        import numpy as np
        import torch

        if self._memory is None or self._memory.size < size or not self._free:
            memory = np.empty(size, np.uint8)
            self._register(memory.ctypes.data, size)
            if self._memory is not None:
                self._forget(self._memory.ctypes.data)
            self._memory = memory
        self._free = False
        lent = self._memory[:size]
        weakref.finalize(lent, self._came_back, self._memory).atexit = False
        return torch.from_numpy(lent)

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return copies of tensors on the CPU; those of other devices are copied on their device.

        Raises:
            WeightsError: the memory cannot be registered.
        """
        import torch

        made: dict[str, torch.Tensor] = {}
        end = 0
        memory = self.take(sum(_aligned(t.nbytes) for t in tensors.values() if t.is_cpu))
        for name, tensor in tensors.items():
            if not tensor.is_cpu:
                made[name] = tensor.clone()
                continue
            begin, end = end, end + _aligned(tensor.nbytes)
            copy, flat = memory[begin : begin + tensor.nbytes], tensor.detach().contiguous()
            # By numpy, since torch would divide the copy among threads, which wait for each other.
            copy.numpy()[:] = flat.reshape(-1).view(torch.uint8).numpy()
            made[name] = copy.view(tensor.dtype).reshape(tensor.shape)
        return made

    def _came_back(self, memory: NDArray[np.uint8]) -> None:
        self._free = self._free or memory is self._memory


class WeightSnapshot:
    """Tensors at one moment, copied by whichever thread is first: the one that needs the copies, or
    the one that is about to change the tensors.

    The invariant: the copies are made once, and before `settle` has returned.

    Args:
        tensors: the tensors, which change only after `settle`.
        memory: memory of the copies; None if the tensors never change, so that they need no copy.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], memory: ReusedMemory | None = None
    ) -> None:
        self.tensors = tensors
        """The tensors themselves, until `settle`."""
        self._memory = memory
        self._lock = threading.Lock()
        self._copies: Mapping[str, torch.Tensor] | None = None
        self._taken = False

    def take(self) -> Mapping[str, torch.Tensor]:
        """Return the copies, which belong to the caller; may be called once."""
        with self._lock:
            copies, self._copies, self._taken = self._copies, None, True
            return copies or self._copied()

    def settle(self) -> None:
        """Return once the tensors may change."""
        with self._lock:
            if not self._taken and self._copies is None:
                self._copies = self._copied()
            self.tensors = {}

    def _copied(self) -> Mapping[str, torch.Tensor]:
        return self.tensors if self._memory is None else self._memory.copies(self.tensors)


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
