"""Digests of the buckets of a version, and the metadata that is stored before them.

Each bucket has an XXH3 digest, which takes a tenth of the time of its transfer. The digest detects
faults, not forgery: any writer to the store can write arbitrary data there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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


def digest(bucket: torch.Tensor) -> str:
    """Return the digest that detects a damaged bucket; other threads can run meanwhile."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(bucket.numpy().data)
