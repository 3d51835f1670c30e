"""The base of domains of other projects' environments: names, rows of tasks, success.

Invariant: a row is JSON, is passed on unchanged, and its task has the same id wherever it is read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.types import Split, Task

Row = Mapping[str, Any]
Rows = str | tuple[Row, ...]
"""Rows, or the path of a file with them: .jsonl, .json (a list) or .parquet."""


@dataclass(frozen=True, kw_only=True)
class ForeignDomain(Domain):
    """Base of the domains whose environments are those of other projects.

    Raises SettingsError if a setting is wrong, and, as soon as tasks are asked for, if a file of
    rows cannot be read.
    """

    name: str = ""  # type: ignore[misc]  # a setting: a pipeline may have two servers
    """Key of hardware affinity and of the `domain` column; domains of one pipeline differ in it."""
    rows: Rows = ()
    """Tasks that are trained on, each a row of the form that the environment takes."""
    held_out_rows: Rows = ()
    """Tasks that training never uses."""
    episodes: int = 64
    """Tasks of an evaluation if there are no rows."""
    max_turns: int = 10
    """Turns after which an episode is truncated."""
    success: str = ""
    """Name of the value of the last answer that says whether the task is solved, such as
    "metadata.won"; by default the reward decides."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not self.name or not self.name.replace("-", "_").isidentifier():
            raise SettingsError(f"{kind}: name is {self.name!r}; take letters, digits, - and _")
        for setting in ("rows", "held_out_rows"):
            value = getattr(self, setting)
            if not isinstance(value, str):
                object.__setattr__(self, setting, tuple(value))
                if not all(isinstance(row, Mapping) for row in value):
                    raise SettingsError(f"{kind}: {setting} holds a row that is no object")
        if self.episodes < 1 or self.max_turns < 1:
            raise SettingsError(f"{kind}: episodes and max_turns must be at least 1")

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The rows: in a fresh order again and again for training, once for evaluation.

        Without rows, one task after the other whose row is empty, so that the seed of the episode
        decides alone.
        """
        rows = self._rows("rows")
        if not rows:
            empty = (self._task({}, f"{n}") for n in count())
            return empty if split is Split.TRAIN else islice(empty, self.episodes)
        return self._shuffled(rows, seed) if split is Split.TRAIN else map(self._task, rows)

    def held_out(self, seed: int) -> Iterator[Task]:
        """The rows that are held out, each once."""
        return map(self._task, self._rows("held_out_rows"))

    def solved(self, answer: Mapping[str, Any]) -> dict[str, object]:
        """Return what `success` names in an answer, as an info; empty if it names nothing."""
        if not self.success:
            return {}
        found: Any = answer
        for part in self.success.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return {} if found is None else {"success": found}

    def _rows(self, setting: str) -> tuple[Row, ...]:
        value: Rows = getattr(self, setting)
        where = f"{type(self).__name__}: {setting}"
        if isinstance(value, str):
            return read_rows(value, where) if value else ()
        return value

    def _shuffled(self, rows: tuple[Row, ...], seed: int) -> Iterator[Task]:
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from map(self._task, random.sample(rows, len(rows)))

    def _task(self, row: Row, key: str | None = None) -> Task:
        try:
            payload = json.dumps(row, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{type(self).__name__}: a row has no JSON form: {error}"
            ) from error
        if key is None:
            given = row.get("task_id", row.get("id"))
            key = sha256(payload.encode()).hexdigest()[:16] if given is None else str(given)
        return Task(f"{self.name}/{key}", self.name, payload)


def read_rows(path: str, where: str) -> tuple[Row, ...]:
    """Return the rows of a file.

    Args:
        path: a file .jsonl, .json or .parquet.
        where: the setting that names it, for errors.

    Raises:
        SettingsError: there is no such file, or it has no rows.
    """
    file = Path(path).expanduser()
    rows: Any = ()
    try:
        if file.suffix == ".parquet":
            import polars as pl

            rows = pl.read_parquet(file).to_dicts()
        elif file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        elif file.suffix == ".json":
            rows = json.loads(file.read_text())
        else:
            raise SettingsError(f"{where} is {path!r}; it must end with .jsonl, .json or .parquet")
    except (OSError, ValueError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{where} {path!r} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{where} {path!r} has no rows; each row must be a JSON object")
    return tuple(rows)
