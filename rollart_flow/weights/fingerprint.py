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


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hexadecimal) over names in sorted order, dtypes, shapes and bytes.

    A tensor that already is contiguous in host memory is read where it lies, without a copy. Other
    threads run meanwhile.
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
