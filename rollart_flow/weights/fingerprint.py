"""A digest of a set of tensors, used as the checksum of a weight version and to verify a replay.

The invariant: equal digests mean equal names, dtypes, shapes and bytes, regardless of the order and
the devices of the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the spelling of a dtype in manifests: `float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_header(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """Return what a fingerprint contains of a tensor, before its bytes."""
    header = repr((name, dtype, tuple(shape))).encode()
    return len(header).to_bytes(8, "little") + header


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the hexadecimal SHA-256 over sorted names, dtypes, shapes and bytes.

    A tensor that is contiguous in host memory is read without a copy. Other threads can run
    meanwhile.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(tensor_header(name, dtype_name(tensor), tensor.shape))
        flat = tensor.cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
