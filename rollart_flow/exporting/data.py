"""`export_data`: trajectories of a run as a data set of conversations or of tokens.

Invariants: the data set appears whole or not at all; memory does not grow with the number of rows,
beside eight bytes for each; nothing of the run is executed or changed.
"""

import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_args

import polars as pl
import pyarrow as pa

from rollart_flow.algorithms.filters import filter_of
from rollart_flow.exporting.conversations import (
    COLUMNS,
    MESSAGE,
    READ,
    conversation_of,
    in_json,
    in_parquet,
)
from rollart_flow.exporting.data_card import data_card
from rollart_flow.exporting.data_files import FILE_BYTES, DataFiles, Format
from rollart_flow.exporting.data_images import DataImages
from rollart_flow.exporting.data_rows import ChosenRows, trained_turns
from rollart_flow.exporting.model import CARD
from rollart_flow.exporting.places import new_place
from rollart_flow.schema import stored_schema
from rollart_flow.store import Run, files, open_run
from rollart_flow.store.damage import reading
from rollart_flow.validation import check_choice
from rollart_flow.weights.atomic import LEFTOVER, flush, flush_all

What = Literal["conversations", "tokens"]
IMAGES = "images"
"""Folder of a data set with the images of its conversations."""
_TOKENS = ("token_ids", "action_mask", "logprobs", "token_versions")
_AT_ONCE = {"conversations": 1000, "tokens": 128}
"""Rows that are in memory at once."""


@dataclass(frozen=True, slots=True)
class ExportedData:
    """An exported data set."""

    run: str
    path: str
    """The folder, or the file."""
    what: str
    format: str
    rows: int
    left_out: int
    """Rows that met the filter, but have no turn."""
    files: tuple[str, ...]
    """Names of the files with rows."""
    images: int


def export_data(
    run: Run | str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: Format = "jsonl",
    what: What = "conversations",
    filter: pl.Expr | str | None = None,
    store: str | os.PathLike[str] | None = None,
    file_bytes: int = FILE_BYTES,
) -> ExportedData:
    """Write trajectories of a run, which may still be running, as a data set.

    Args:
        run: an opened run, or the path, URI or name of one.
        to: the new folder, which gets a card; or a new file whose name ends with the format.
        format: "jsonl", "parquet", or "hf" for a folder that `datasets.load_dataset` loads.
        what: "conversations", as messages of the chat completions API, or "tokens", with the
            action mask, logprobs and policy versions.
        filter: condition on rows of `trajectories`, as an expression of polars or as text.
        store: store in which names are looked up; $ROLLART_STORE or ./runs by default.
        file_bytes: size from which on rows go to another file of the folder.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: the path exists, or an argument is wrong.
        QueryError: the condition is wrong.
        StoreError: the run cannot be read, or the data set written.
    """
    check_choice("format", format, get_args(Format))
    check_choice("what", what, get_args(What))
    stored = run if isinstance(run, Run) else open_run(run, store=store)
    where = filter_of(filter) if isinstance(filter, str) else filter
    target = new_place(to, "path for the data set")
    request = _DataSetRequest(stored, target, format, what, filter, file_bytes)
    with reading(stored.uri):
        chosen = ChosenRows.of(stored.snapshot(), where)
    with files.converting(f"cannot write {target}"), _hidden(target) as folder:
        return request.write(chosen, folder)


@contextmanager
def _hidden(target: Path) -> Iterator[Path]:
    """Provide an empty folder beside a path, which is removed unless it is renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(mkdtemp(dir=target.parent, prefix=f"{LEFTOVER}{target.name}-"))
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    flush(target.parent)


@dataclass(frozen=True, slots=True)
class _DataSetRequest:
    """Request for a data set of a run: its place, its form, and the condition on rows."""

    run: Run
    target: Path
    format: Format
    what: What
    said: pl.Expr | str | None
    """The condition as it was given; None for all rows."""
    file_bytes: float

    @property
    def single(self) -> bool:
        """Whether the data set is one file rather than a folder."""
        return self.format != "hf" and self.target.suffix == f".{self.format}"

    @property
    def suffix(self) -> str:
        """Format of the files with rows."""
        return "jsonl" if self.format == "jsonl" else "parquet"

    def write(self, chosen: ChosenRows, folder: Path) -> ExportedData:
        """Write the rows, their images and the card to a folder, and give it its name."""
        most = math.inf if self.single else self.file_bytes
        written = DataFiles(folder, self.suffix, data_schema(self.what), most)
        images = DataImages(self.run, None if self.single else folder / IMAGES)
        with reading(self.run.uri):
            paths = _write(chosen, written, images, self.what)
        names = (self.target.name,) if self.single else tuple(path.name for path in paths)
        result = ExportedData(
            self.run.info.name, str(self.target), self.what, self.format, chosen.seqs.len(),
            chosen.left_out, names, images.count,
        )  # fmt: skip
        if self.single:
            paths[0].rename(folder / self.target.name)
        else:
            (folder / CARD).write_text(self._card(result, chosen), encoding="utf-8")
        flush_all(folder)
        folder.chmod(0o755)
        (folder / names[0] if self.single else folder).rename(self.target)
        return result

    def _card(self, result: ExportedData, chosen: ChosenRows) -> str:
        words = ["rollart", "export", result.run, "--format", self.format, "--what", self.what]
        if isinstance(self.said, str):
            words += ["--filter", self.said]
        words += ["--to", self.target.name]
        return data_card(
            self.run.info,
            what=self.what,
            rows=result.rows,
            files=f"train-*.{self.suffix}",
            schema=data_schema(self.what),
            provenance={
                "filter": "all rows" if self.said is None else self.said,
                "left out, without a turn": result.left_out,
                "up to seq": chosen.tables.seq,
                "command": shlex.join(words),
            },
            counts=chosen.counts,
        )


def _write(chosen: ChosenRows, written: DataFiles, images: DataImages, what: What) -> list[Path]:
    """Write all rows, some at a time, and return the files."""
    try:
        if what == "tokens":
            _write_tokens(chosen, written)
        else:
            _write_conversations(chosen, written, images)
            images.close()
        return written.close()
    finally:
        written.abandon()


def _write_tokens(chosen: ChosenRows, written: DataFiles) -> None:
    schema = data_schema("tokens")
    for rows in chosen.read(schema.names, _AT_ONCE["tokens"]):
        written.write_table(rows.to_arrow().cast(schema))


def _write_conversations(chosen: ChosenRows, written: DataFiles, images: DataImages) -> None:
    make: Callable[[dict[str, Any]], dict[str, Any]]
    make = in_parquet if written.suffix == "parquet" else in_json
    for rows in chosen.read(READ, _AT_ONCE["conversations"]):
        found = rows.drop("action_mask").to_dicts()
        for row, trained in zip(found, trained_turns(rows), strict=True):
            row["trained"] = trained
            images.write(row["images"])
        written.write([make(conversation_of(row, IMAGES)) for row in found])


def data_schema(what: str) -> pa.Schema:
    """Return the columns of a data set in Parquet."""
    declared = stored_schema("trajectories")
    fields = [declared.field(name).remove_metadata() for name in COLUMNS]
    if what == "tokens":
        return pa.schema(fields + [declared.field(name).remove_metadata() for name in _TOKENS])
    return pa.schema(
        [
            *fields,
            pa.field("messages", pa.list_(MESSAGE)),
            pa.field("tools", pa.string()),
            pa.field("images", pa.list_(pa.string())),
        ]
    )
