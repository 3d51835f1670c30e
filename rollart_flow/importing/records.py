"""Records of files: objects of JSONL, or rows of Parquet, with their places.

Invariant: one record, or one batch of Parquet, is in memory.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.validation import check_choice

FORMATS = ("jsonl", "parquet")
_BATCH = 256
_LONGEST = 256 * 1024**2
"""Longest line [bytes]."""


class BadRecordError(SettingsError):
    """Raised for a record that is no conversation; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """An object of a file, or why there is none."""

    file: Path
    number: int
    """Line, or row, from 1."""
    value: Any = None
    error: str | None = None

    @property
    def place(self) -> str:
        """File and line, for messages."""
        word = "row" if self.file.suffix == ".parquet" else "line"
        return f"{self.file}, {word} {self.number}"


def check_files(paths: list[Path], form: str | None) -> None:
    """Refuse files that cannot be read, or whose format is not known.

    Raises:
        SettingsError: names the file.
    """
    if not paths:
        raise SettingsError("no file to import")
    for path in paths:
        if not path.is_file():
            raise SettingsError(f"{path}: no such file")
        _format_of(path, form)


def records(paths: list[Path], form: str | None) -> Iterator[ImportRecord]:
    """Yield the records of files in their order; blank lines are passed over.

    Raises:
        SettingsError: a file cannot be read.
    """
    for path in paths:
        try:
            if _format_of(path, form) == "jsonl":
                yield from _lines(path)
            else:
                yield from _rows(path)
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read: {one_line(error)}") from error


def _format_of(path: Path, form: str | None) -> str:
    found = form or {".json": "jsonl", ".ndjson": "jsonl"}.get(path.suffix, path.suffix[1:])
    if form is None and found not in FORMATS:
        raise SettingsError(f"{path}: its name does not say its format; give --format jsonl")
    check_choice("format", found, FORMATS)
    return found


def _lines(path: Path) -> Iterator[ImportRecord]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST):
            number += 1
            if len(line) == _LONGEST:
                raise SettingsError(f"{path}, line {number}: it is longer than {_LONGEST} bytes")
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            try:
                yield ImportRecord(path, number, json.loads(line))
            except UnicodeDecodeError as error:
                yield ImportRecord(path, number, error=f"it is no UTF-8: {one_line(error)}")
            except (ValueError, RecursionError) as error:
                if number == 1 and line.lstrip()[:1] == b"[":
                    raise SettingsError(
                        f"{path}: it is a list over several lines; write one object in each line"
                    ) from error
                yield ImportRecord(path, number, error=f"it is no JSON: {one_line(error)}")


def _rows(path: Path) -> Iterator[ImportRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield ImportRecord(path, number, row)
    except (pa.ArrowException, pa.ArrowInvalid) as error:
        raise SettingsError(f"{path}: it is no Parquet file: {one_line(error)}") from error
