"""Reading of W&B's offline files, whose library writes them and has no reader in Python.

A file has records of LevelDB's log format, in blocks of 32 KiB behind a header of 7 bytes, each of
which is a `Record` of the library's own protocol. A file that was torn ends where it was torn.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_HEADER = struct.Struct("<IHB")
"""Checksum, length and type of a part of a record."""
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)


def offline_records(path: Path) -> Iterator[Any]:
    """Give the records of one file, as `wandb.proto.wandb_internal_pb2.Record`."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _payloads(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def _payloads(data: bytes) -> Iterator[bytes]:
    place, parts = _FILE_HEADER_BYTES, bytearray()
    while place + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _HEADER.size:
            place += left
            continue
        _, length, kind = _HEADER.unpack_from(data, place)
        end = place + _HEADER.size + length
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or end > len(data):
            return
        parts += data[place + _HEADER.size : end]
        place = end
        if kind in (_FULL, _LAST):
            yield bytes(parts)
            parts.clear()


def offline_steps(folder: Path, run_id: str) -> Iterator[int]:
    """Give the steps that the offline files of a run have, in a folder `wandb`."""
    for path in sorted(folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")):
        for record in offline_records(path):
            if record.WhichOneof("record_type") == "history":
                yield int(record.history.step.num)
