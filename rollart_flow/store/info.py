"""Information about a run besides its rows: `run.json` in its folder.

The file is replaced atomically, so that a reader sees it before or after a change, never between.
A run whose driver died without recording it reads as interrupted; each read determines that anew.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from rollart_flow.errors import RunExistsError, RunNotFoundError, StoreError
from rollart_flow.schema import SCHEMA_VERSION
from rollart_flow.store import files
from rollart_flow.store.lease import is_driven
from rollart_flow.store.owner import Owner

_PACKAGES = (
    "rollart-flow",
    "deltalake",
    "numpy",
    "polars",
    "pyarrow",
    "ray",
    "torch",
    "tokenizers",
)


class RunStatus(StrEnum):
    """State of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    IMPORTING = "importing"
    """The run's rows are being imported, or the process that imported them was killed; nothing
    reads such a run."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The run and the step that a forked run started from."""

    uri: str
    step: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """One resumption of a run."""

    at: datetime
    versions: Mapping[str, str]
    """Installed versions of the packages that can change a result."""

    @classmethod
    def now(cls) -> Self:
        """Return the record of a resumption by this process, now."""
        return cls(datetime.now(UTC), package_versions())


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of `run.json`."""

    name: str
    pipeline: str
    """Name of the pipeline."""
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serializable settings of every node, as they ran."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that were overridden on the command line."""
    parent: Parent | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    status: RunStatus = RunStatus.RUNNING
    error: str | None = None
    """Reason of a failure, in one line."""
    owner: Owner = field(default_factory=Owner.this_process)
    """The process that drives the run, or drove it last."""
    term: int = 0
    """Term of that process (see `store.lease`); 0 in runs of an earlier version."""
    versions: Mapping[str, str] = field(default_factory=lambda: package_versions())
    """Installed versions of the packages that can change a result, when the run was made."""
    resumed: tuple[Resumed, ...] = ()
    """Every resumption, in order."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The text of `run.json`."""
        values = asdict(self) | {"created_at": self.created_at.isoformat()}
        values["resumed"] = [asdict(each) | {"at": each.at.isoformat()} for each in self.resumed]
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        values = json.loads(text)
        values["created_at"] = datetime.fromisoformat(values["created_at"])
        values["status"] = RunStatus(values["status"])
        values["owner"] = Owner(**values["owner"])
        values["parent"] = None if values["parent"] is None else Parent(**values["parent"])
        values["resumed"] = tuple(
            Resumed(datetime.fromisoformat(each["at"]), each["versions"])
            for each in values.get("resumed", ())
        )
        return cls(**values)


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that can change what a run computes."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    """Read the versions, which takes some 10 ms."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def info_uri(run: str) -> str:
    """Address of a run's `run.json`."""
    return files.join(run, "run.json")


def read_info(run: str) -> RunInfo:
    """The run's information, with status interrupted if no process drives it.

    Raises:
        RunNotFoundError: there is no `run.json`.
        StoreError: the file is damaged, or has a newer schema version.
    """
    data = files.read(info_uri(run))
    if data is None:
        raise RunNotFoundError(f"no run at {run}: there is no run.json")
    _refuse_newer(run, data)
    try:
        info = RunInfo.from_json(data.decode())
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{info_uri(run)} is damaged ({files.one_line(error)}); restore it from a copy"
        ) from error
    if info.status is RunStatus.RUNNING and not is_driven(run, info.owner):
        return replace(info, status=RunStatus.INTERRUPTED)
    return info


def check_whole(run: str) -> None:
    """Refuse a run whose import has not ended, since its rows are incomplete.

    Raises:
        StoreError: says whether it goes on or was cut off.
        RunNotFoundError: there is no `run.json`.
    """
    info = read_info(run)
    if info.status is not RunStatus.IMPORTING:
        return
    if is_driven(run, info.owner):
        raise StoreError(f"the run at {run} is being imported; wait for the end of that")
    raise StoreError(
        f"the import of the run at {run} was cut off; repeat `rollart import`, which begins anew"
    )


def _refuse_newer(run: str, data: bytes) -> None:
    """Check the schema version before anything else: a newer file may have unknown keys."""
    try:
        found = json.loads(data)["schema_version"]
    except (KeyError, TypeError, ValueError):
        return
    if isinstance(found, int) and found > SCHEMA_VERSION:
        raise StoreError(
            f"run at {run} has schema version {found}, this rollart_flow reads up to"
            f" {SCHEMA_VERSION}; upgrade rollart_flow"
        )


def write_info(run: str, info: RunInfo, *, new: bool = False) -> None:
    """Replace the run's information, or claim a new run.

    Raises:
        RunExistsError: `new`, and there is a run already.
        StoreError: the folder cannot be written.
    """
    if not files.write(info_uri(run), info.to_json().encode(), exclusive=new):
        raise RunExistsError(f"there is a run at {run} already; choose another name")
