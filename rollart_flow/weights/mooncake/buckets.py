"""Buckets of a version in registered memory, and the metadata that is stored before them.

Each bucket has an XXH3 digest, which takes a tenth of the time of its transfer. The digest detects
faults, not forgery: any writer to the store can write arbitrary data there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Described:
    """The metadata of a version, stored before its buckets."""

    manifest: Manifest
    bucket_bytes: int
    """Size of all buckets but the last."""

    def encode(self) -> bytes:
        """Encode the metadata for storage."""
        return json.dumps({**asdict(self.manifest), "bucket_bytes": self.bucket_bytes}).encode()

    @classmethod
    def decode(cls, stored: bytes) -> Described:
        """Decode stored metadata.

        Raises:
            WeightsError: the bytes are not metadata of a version.
        """
        try:
            raw = json.loads(stored)
            bucket_bytes = int(raw.pop("bucket_bytes"))
            return cls(Manifest.from_json(raw), bucket_bytes)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"its manifest cannot be read: {error}") from error


def pack(parts: Iterable[torch.Tensor], staging: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Fill the buffers in turn and yield them; the caller owns a yielded buffer until the next but
    one is yielded.

    Args:
        parts: bytes on the CPU.
        staging: two or more byte buffers of the same size.
    """
    buffers = cycle(staging)
    buffer, filled = next(buffers), 0
    for part in parts:
        taken = 0
        while taken < part.numel():
            count = min(buffer.numel() - filled, part.numel() - taken)
            buffer[filled : filled + count] = part[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == buffer.numel():
                yield buffer
                buffer, filled = next(buffers), 0
    if filled:
        yield buffer[:filled]


def digest(bucket: torch.Tensor) -> str:
    """Return the digest that detects a damaged bucket; other threads can run meanwhile."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(bucket.numpy().data)
