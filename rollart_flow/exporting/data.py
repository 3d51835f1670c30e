"""`export_data`: trajectories of a run as a data set of conversations or of tokens.

Invariants: the data set appears whole or not at all; memory does not grow with the number of rows,
beside eight bytes for each; nothing of the run is executed or changed.
"""

import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from rollart_flow.algorithms.filters import filter_of
from rollart_flow.errors import QueryError, SettingsError
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
from rollart_flow.exporting.model import CARD
from rollart_flow.schema import stored_schema
from rollart_flow.store import Run, Snapshot, files, open_run
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
    target = _target(os.fspath(to))
    single = format != "hf" and target.suffix == f".{format}"
    where = filter_of(filter) if isinstance(filter, str) else filter
    with reading(stored.uri):
        chosen = _Chosen.of(stored.snapshot(), where)
    suffix = "jsonl" if format == "jsonl" else "parquet"
    with files.converting(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(mkdtemp(dir=target.parent, prefix=f"{LEFTOVER}{target.name}-"))
        try:
            written = DataFiles(hidden, suffix, _schema(what), math.inf if single else file_bytes)
            images = _ImageFiles(stored, None if single else hidden / IMAGES)
            with reading(stored.uri):
                names = _write(chosen, written, images, what)
            result = ExportedData(
                stored.info.name, str(target), what, format, chosen.seqs.len(), chosen.left_out,
                (target.name,) if single else tuple(path.name for path in names), images.count,
            )  # fmt: skip
            if single:
                flush(names[0])
                names[0].rename(target)
            else:
                said = filter if isinstance(filter, str) else where
                card = _card(stored, result, chosen, said, suffix)
                (hidden / CARD).write_text(card, encoding="utf-8")
                flush_all(hidden)
                hidden.chmod(0o755)
                hidden.rename(target)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        flush(target.parent)
    return result


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of a data set."""

    tables: Snapshot
    seqs: pl.Series
    left_out: int
    counts: list[tuple[Any, ...]]

    @classmethod
    def of(cls, tables: Snapshot, where: pl.Expr | None) -> "_Chosen":
        rows = tables.trajectories if where is None else tables.trajectories.filter(where)
        told = pl.col("turns").list.len() > 0
        try:
            found = rows.select("seq", "domain", "outcome", "reward", told.alias("told")).collect(
                engine="streaming"
            )
        except pl.exceptions.PolarsError as error:
            raise QueryError(f"filter: {files.one_line(error)}") from error
        kept = found.filter("told")
        counts = kept.group_by("domain", "outcome").agg(
            pl.len(), pl.col("reward").mean().round(4).alias("mean")
        )
        ordered = counts.sort("domain", "outcome").rows()
        return cls(tables, kept["seq"].sort(), found.height - kept.height, ordered)

    def read(self, columns: list[pl.Expr], at_once: int) -> Iterator[pl.DataFrame]:
        """Yield the rows in order of seq, some at a time."""
        for start in range(0, self.seqs.len(), at_once):
            seqs = self.seqs[start : start + at_once]
            near = pl.col("seq").is_between(seqs[0], seqs[-1])  # files without such rows are left
            rows = self.tables.trajectories.filter(near, pl.col("seq").is_in(seqs.to_list()))
            yield rows.select(columns).collect().sort("seq")


class _ImageFiles:
    """The images of a data set, each of which is written once."""

    def __init__(self, run: Run, folder: Path | None) -> None:
        self._run, self._folder = run, folder

    @property
    def count(self) -> int:
        """Number of images that were written."""
        there = self._folder is not None and self._folder.exists()
        return sum(1 for _ in self._folder.iterdir()) if there and self._folder else 0

    def write(self, names: list[str] | None) -> None:
        """Write the images of a row."""
        if not names:
            return
        if self._folder is None:
            raise SettingsError("the conversations have images; export them to a folder")
        self._folder.mkdir(exist_ok=True)
        for name in names:
            path = self._folder / f"{name}.png"
            if not path.exists():
                path.write_bytes(self._run.image(name).png or b"")

    def close(self) -> None:
        """Force the files to disk."""
        if self._folder is not None and self._folder.exists():
            flush_all(self._folder)


def _write(chosen: _Chosen, written: DataFiles, images: _ImageFiles, what: str) -> list[Path]:
    """Write all rows, and return the files."""
    try:
        if what == "tokens":
            schema = _schema(what)
            columns = [pl.col(name) for name in schema.names]
            for rows in chosen.read(columns, _AT_ONCE[what]):
                written.write_table(rows.select(schema.names).to_arrow().cast(schema))
        else:
            columns = [*map(pl.col, READ)]
            make: Callable[[dict[str, Any]], dict[str, Any]]
            make = in_parquet if written.suffix == "parquet" else in_json
            for rows in chosen.read(columns, _AT_ONCE[what]):
                found = rows.drop("action_mask").to_dicts()
                for row, trained in zip(found, _trained(rows), strict=True):
                    row["trained"] = trained
                    images.write(row["images"])
                written.write([make(conversation_of(row, IMAGES)) for row in found])
            images.close()
        return written.close()
    finally:
        written.abandon()


def _trained(rows: pl.DataFrame) -> list[list[bool]]:
    """Return by row, and turn, whether a token of the turn is an action that is trained on."""
    masks = rows["action_mask"]
    flat = masks.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    before = np.concatenate([[0], np.cumsum(flat, dtype=np.int64)])
    starts = np.concatenate([[0], np.cumsum(masks.list.len().cast(pl.Int64).to_numpy())])[:-1]
    return [
        [bool(before[at + turn["end"]] > before[at + turn["start"]]) for turn in turns]
        for at, turns in zip(starts, rows["turns"].to_list(), strict=True)
    ]


def _schema(what: str) -> pa.Schema:
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


def _card(run: Run, result: ExportedData, chosen: _Chosen, said: object, suffix: str) -> str:
    words = ["rollart", "export", result.run, "--format", result.format, "--what", result.what]
    if isinstance(said, str):
        words += ["--filter", said]
    words += ["--to", Path(result.path).name]
    return data_card(
        run.info,
        what=result.what,
        rows=result.rows,
        files=f"train-*.{suffix}",
        schema=_schema(result.what),
        provenance={
            "filter": "all rows" if said is None else said,
            "left out, without a turn": result.left_out,
            "up to seq": chosen.tables.seq,
            "command": shlex.join(words),
        },
        counts=chosen.counts,
    )


def _target(to: str) -> Path:
    if files.is_remote(to):
        raise SettingsError(f"{to!r} is not on this machine; export to a folder and copy that")
    target = Path(to).expanduser()
    if target.exists() or target.is_symlink():
        raise SettingsError(f"{str(target)!r} exists; give a new path for the data set")
    return target
