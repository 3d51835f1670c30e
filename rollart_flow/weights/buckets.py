"""A version as one sequence of bytes, which stores publish and read in buckets.

The sequence is a safetensors file: a header, then the tensors without gaps, those with the widest
elements first and otherwise by name. The invariant: `tensors_in` of the bytes of `parts` gives
exactly the tensors, each aligned to its elements.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import TensorEntry, entries_of
from rollart_flow.weights.fingerprint import tensor_header
from rollart_flow.weights.following import Following

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 32 << 20
"""Size of a bucket; over Mooncake it can be read within a lease even at a few MiB/s."""
_ALIGN = 64
_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""Names of dtypes in safetensors files."""


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Place of each tensor of a version in its bytes."""

    header: bytes
    places: tuple[tuple[TensorEntry, int, int], ...]
    """Each tensor with the begin and the end of its bytes, in their order."""
    size: int


def layout_of(entries: Iterable[TensorEntry]) -> BucketLayout:
    """Return the layout of a version with these tensors.

    Raises:
        WeightsError: a safetensors file cannot hold a tensor.
    """
    places, end = list[tuple[TensorEntry, int, int]](), 0
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for entry in sorted(entries, key=lambda entry: (-_itemsize(entry), entry.name)):
        begin, end = end, end + math.prod(entry.shape) * _itemsize(entry)
        places.append((entry, begin, end))
        described[entry.name] = {
            "dtype": _CODES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    header = len(text).to_bytes(8, "little") + text
    start = len(header)
    moved = tuple((entry, start + begin, start + end) for entry, begin, end in places)
    return BucketLayout(header, moved, start + end)


def parts(tensors: Mapping[str, torch.Tensor], layout: BucketLayout) -> Iterator[memoryview]:
    """Yield the bytes of a version in order, in parts of at most a bucket, on the CPU."""
    import torch

    yield memoryview(layout.header)
    for entry, _, _ in layout.places:
        flat = tensors[entry.name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield from (part.numpy().data for part in _cut(flat, BUCKET_BYTES))


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file; tensors may be on any device, be views and share memory.

    Raises:
        OSError: the file cannot be written.
        WeightsError: a safetensors file cannot hold a tensor.
    """
    with path.open("wb") as stream:
        stream.writelines(parts(tensors, layout_of(entries_of(tensors))))


def pack(pieces: Iterable[memoryview], buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """Fill buffers in turn with pieces of any size and yield them, the last one cut to its content.

    A yielded buffer is filled again only if `buffers` repeats it.
    """
    empty = iter(buffers)
    buffer, filled = next(empty), 0
    for piece in pieces:
        rest = piece.cast("B")
        while rest:
            count = min(len(buffer) - filled, len(rest))
            buffer[filled : filled + count] = rest[:count]
            filled, rest = filled + count, rest[count:]
            if filled == len(buffer):
                yield buffer
                buffer, filled = next(empty), 0
    if filled:
        yield buffer[:filled]


def pull(
    memory: torch.Tensor,
    bucket_bytes: int,
    fetch: Callable[[int, torch.Tensor], None],
    following: Following,
    *,
    at_once: int = 1,
) -> Iterator[torch.Tensor]:
    """Yield the buckets of a version in order, while later ones are fetched.

    Args:
        memory: bytes of the whole version.
        bucket_bytes: size of all buckets but the last.
        fetch: fills the given part of the memory with the bucket of this number.
        following: ended if a bucket cannot be fetched, or its consumer fails.
        at_once: number of buckets fetched concurrently.
    """

    def fetched(item: tuple[int, torch.Tensor]) -> torch.Tensor:
        fetch(*item)
        return item[1]

    with ThreadPoolExecutor(at_once, thread_name_prefix="weights-pull") as threads:
        try:
            yield from threads.map(fetched, enumerate(_cut(memory, bucket_bytes)))
        except BaseException:  # a thread may wait for a bucket
            following.end()
            raise


def tensors_in(layout: BucketLayout, memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors of a version as views of its bytes."""
    return {
        entry.name: memory[begin:end].view(_dtype(entry)).reshape(entry.shape)
        for entry, begin, end in layout.places
    }


class ArrivingFingerprint:
    """The `fingerprint` of a version whose bytes arrive in order.

    Args:
        layout: layout of the version.
        memory: memory that the bytes arrive in.
    """

    def __init__(self, layout: BucketLayout, memory: torch.Tensor) -> None:
        self._left = sorted(layout.places, key=lambda place: place[0].name, reverse=True)
        self._memory = memory.numpy()
        self._digest = hashlib.sha256()
        self._hashed: int | None = None
        """Position up to which the last tensor that is left is hashed."""

    def update(self, arrived: int) -> None:
        """Hash what can be hashed, once this number of bytes has arrived."""
        while self._left:
            entry, begin, end = self._left[-1]
            if self._hashed is None:
                self._digest.update(tensor_header(entry.name, entry.dtype, entry.shape))
                self._hashed = begin
            if arrived > self._hashed:
                self._digest.update(self._memory[self._hashed : min(end, arrived)].data)
                self._hashed = min(end, arrived)
            if arrived < end:
                return
            self._left.pop()
            self._hashed = None

    def hexdigest(self) -> str:
        """Return the fingerprint, once all bytes have arrived."""
        return self._digest.hexdigest()


def _cut(whole: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    return (whole[begin : begin + size] for begin in range(0, whole.numel(), size))


def _dtype(entry: TensorEntry) -> torch.dtype:
    import torch

    if entry.dtype not in _CODES:
        raise WeightsError(f"{entry.name} has dtype {entry.dtype}, which cannot be published")
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return dtype


def _itemsize(entry: TensorEntry) -> int:
    return _dtype(entry).itemsize
