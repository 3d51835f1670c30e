"""Host copies of tensors whose device memory another process uses meanwhile.

The invariant: the tensors keep their identity, shapes and strides, and hold the same bits after
`restore` as before `take`, so that a step is computed as if the memory had never been freed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rollart_flow.models.sharded import is_sharded


class HostCopies:
    """Copies in host memory of tensors whose own memory is freed."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.UntypedStorage, torch.Tensor]] = []

    def take(self, tensors: Iterable[torch.Tensor]) -> int:
        """Copy tensors to the host and free their memory; return the number of freed bytes.

        The tensors must not be read until `restore`. Tensors that share their memory are copied
        once. Host memory that torch cannot free is left as it is: a mapped file, or a tensor that
        was read through numpy, as the fingerprint of weights on a CPU does.
        """
        freed = 0
        for tensor in tensors:
            local = tensor.to_local() if is_sharded(tensor) else tensor
            storage = local.detach().untyped_storage()
            if not storage.nbytes() or not storage.resizable():
                continue
            freed += storage.nbytes()
            self._copies.append((storage, _bytes_of(storage).to("cpu", copy=True)))
            storage.resize_(0)
        torch.cuda.empty_cache()  # for other processes; does nothing without a GPU
        return freed

    def restore(self) -> None:
        """Reserve the memory again and copy the tensors back."""
        while self._copies:
            storage, copy = self._copies.pop()
            storage.resize_(copy.nbytes)
            _bytes_of(storage).copy_(copy)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a view of all bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
