"""Rows of questions from a file or a folder: Parquet, Arrow, JSONL, JSON or CSV.

A folder is read as `datasets` of Hugging Face writes it, without that package: `train/*.arrow` of
`save_to_disk`, `data/train-00000-of-00001.parquet` of a repository, or any files of these kinds
below it. The split of a row is the name of the file or folder that it lies in.

Invariant: an error is one line that names the file, the row (from 1) and the column.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line

SUFFIXES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv")
_SPLIT = re.compile(
    r"(?:^|[-_.])(train|training|validation|valid|val|dev|test|eval|heldout|held_out)(?=$|[-_.\d])",
    re.IGNORECASE,
)
_SPLIT_NAMES = {
    "training": "train",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
_ABOUT = frozenset(
    ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
)
"""Files of a data set that describe it and hold no rows."""

Row = Mapping[str, Any]


class TableRow:
    """A row, and where it comes from."""

    __slots__ = ("_file", "_number", "split", "values")

    def __init__(self, file: Path, number: int, split: str, values: Row) -> None:
        self._file = file
        self._number = number
        self.split = split
        """Name of the split that its file or folder names, or an empty text."""
        self.values = values

    @property
    def where(self) -> str:
        """The file and the number of the row, for errors."""
        return f"{self._file}: row {self._number}"


def read_rows(path: str) -> list[TableRow]:
    """Return the rows of a file or of all files below a folder, in the order of their names.

    Raises:
        SettingsError: there is no such file, or one cannot be read.
    """
    place = Path(path)
    rows = []
    for file in _files(place):
        split = _split_of(file.relative_to(place) if place.is_dir() else Path(file.name))
        try:
            rows += [TableRow(file, number, split, it) for number, it in enumerate(_rows(file), 1)]
        except SettingsError:
            raise
        except Exception as error:  # of pyarrow, which has many kinds
            raise SettingsError(f"questions: {file} cannot be read: {one_line(error)}") from error
    return rows


def stamp(path: str) -> tuple[tuple[str, int, int], ...]:
    """Return what changes with the files of a path: their names, times and sizes.

    Raises:
        SettingsError: there is no such file.
    """
    files = [(file, file.stat()) for file in _files(Path(path))]
    return tuple((str(file), about.st_mtime_ns, about.st_size) for file, about in files)


def _files(place: Path) -> list[Path]:
    if place.is_file():
        if place.suffix.lower() not in SUFFIXES:
            raise SettingsError(f"questions: {place} is none of {', '.join(SUFFIXES)}")
        return [place]
    if not place.is_dir():
        raise SettingsError(f"questions: {place} does not exist; give a file or a folder")
    found = [
        file
        for file in sorted(place.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.name not in _ABOUT and file.is_file()
    ]
    found = [file for file in found if not file.name.startswith((".", "cache-"))]
    if not found:
        raise SettingsError(f"questions: {place} holds no file of {', '.join(SUFFIXES)}")
    return found


def _split_of(path: Path) -> str:
    """Return the split that a file's name or one of its folders says; empty if none does."""
    for part in reversed((*path.parts[:-1], path.stem)):
        if found := _SPLIT.search(part):
            name = found[1].lower()
            return _SPLIT_NAMES.get(name, name)
    return ""


def _rows(file: Path) -> Iterator[Row]:
    kind = file.suffix.lower()
    if kind == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(file).to_pylist()
    elif kind == ".arrow":
        yield from _arrow_rows(file)
    elif kind == ".csv":
        with file.open(encoding="utf-8", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream, strict=True), 1):
                if None in row or None in row.values():
                    raise SettingsError(
                        f"questions: {file}: row {number} has another number of columns than the "
                        "first line"
                    )
                yield row
    else:
        yield from _json_rows(file)


def _arrow_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of an Arrow file, which `datasets` writes as a stream."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            source.seek(0)
            yield from pa.ipc.open_file(source).read_all().to_pylist()
            return
        yield from reader.read_all().to_pylist()


def _json_rows(file: Path) -> Iterator[Row]:
    text = file.read_text(encoding="utf-8")
    if file.suffix.lower() == ".json" and text.lstrip()[:1] == "[":
        found = json.loads(text)
    else:
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                found += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                said = f"questions: {file}: row {number} is no JSON: {one_line(error)}"
                raise SettingsError(said) from error
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise SettingsError(f"questions: {file}: row {number} is no object with columns")
        yield row
