"""One digest for a set of tensors: the checksum of a weight version and the proof of a replay.

The invariant: equal digests mean equal names, dtypes, shapes and bytes, whatever the order in which
the tensors were given, and wherever they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32`, `bfloat16`, ...: how manifests spell a dtype."""
    return str(tensor.dtype).removeprefix("torch.")


class Fingerprint:
    """The digest of tensors that come one after the other, in order of their names, in pieces."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def begin(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """The bytes that follow are of this tensor; `dtype` as in manifests."""
        header = repr((name, dtype, shape)).encode()
        self._digest.update(len(header).to_bytes(8, "little"))
        self._digest.update(header)

    def update(self, flat: torch.Tensor) -> None:
        """The next bytes of it; contiguous, in host memory. Other threads run meanwhile."""
        import torch

        self._digest.update(flat.view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """Of all so far."""
        return self._digest.hexdigest()


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hexadecimal) over names in sorted order, dtypes, shapes and bytes.

    A tensor that already is contiguous in host memory is read where it lies, without a copy.
    """
    digest = Fingerprint()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.begin(name, dtype_name(tensor), tuple(tensor.shape))
        digest.update(tensor.cpu().contiguous().reshape(-1))
    return digest.hexdigest()
