"""Files of a data set: JSONL or Parquet, several where one would be large.

Invariant: the rows of one call of `write` are in memory, and those of no other.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Format = Literal["jsonl", "parquet", "hf"]
FILE_BYTES = 256 * 1024**2
"""Size from which on rows go to another file, of a data set in a folder."""


class DataFiles:
    """Writes rows to files of a folder.

    Args:
        folder: the folder.
        suffix: "jsonl" or "parquet".
        schema: types of the columns.
        file_bytes: size from which on rows go to another file.
    """

    def __init__(
        self, folder: Path, suffix: str, schema: pa.Schema, file_bytes: float = FILE_BYTES
    ) -> None:
        self._folder, self.suffix, self._schema = folder, suffix, schema
        self._file_bytes = file_bytes
        self._writer: pq.ParquetWriter | None = None
        self._parts: list[Path] = []

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows: a row group of Parquet, or lines."""
        if self.suffix == "parquet":
            self.write_table(pa.Table.from_pylist([*rows], schema=self._schema))
            return
        self._begin_if_full()
        with self._parts[-1].open("a", encoding="utf-8", errors="replace") as file:
            for row in rows:
                line = json.dumps(_finite(row), ensure_ascii=False, separators=(",", ":"))
                file.write(f"{line}\n")

    def write_table(self, rows: pa.Table) -> None:
        """Add rows of the schema: a row group of Parquet, or lines, of which one is in memory."""
        if self.suffix != "parquet":
            for index in range(rows.num_rows):
                self.write(rows.slice(index, 1).to_pylist())
            return
        self._begin_if_full()
        assert self._writer is not None, "a file of Parquet is open"
        self._writer.write_table(rows)

    def close(self) -> list[Path]:
        """Give the files their names, which have their number, and return them; one at least."""
        if not self._parts:
            self._begin()
        self._end()
        count = len(self._parts)
        named = []
        for number, part in enumerate(self._parts):
            name = f"train-{number:05d}-of-{count:05d}.{self.suffix}"
            named.append(part.rename(self._folder / name))
        return named

    def abandon(self) -> None:
        """Close the file that is open."""
        self._end()

    def _begin_if_full(self) -> None:
        if not self._parts or self._parts[-1].stat().st_size >= self._file_bytes:
            self._begin()

    def _begin(self) -> None:
        self._end()
        path = self._folder / f"{len(self._parts)}.part"
        self._parts.append(path)
        path.touch()
        if self.suffix == "parquet":
            self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _finite(value: Any) -> Any:
    """Return a value of JSON, in which a number that is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
