"""A digest of a set of tensors, used as the checksum of a weight version and to verify a replay.

The invariant: equal digests mean equal names, dtypes, shapes and bytes, regardless of the order and
the devices of the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the spelling of a dtype in manifests: `float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the hexadecimal SHA-256 over sorted names, dtypes, shapes and bytes.

    A tensor that is contiguous in host memory is read without a copy. Other threads can run
    meanwhile.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        header = repr((name, dtype_name(tensor), tuple(tensor.shape))).encode()
        digest.update(len(header).to_bytes(8, "little"))
        digest.update(header)
        flat = tensor.cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
