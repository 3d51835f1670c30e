"""Trackers and their sinks.

The tables of a run are the source; a tracker gets their records in commit order, from a process of
its own. The invariant: a record that is written again changes nothing, so that a tracker can be
killed at any moment and goes on from its cursor.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.errors import MissingExtraError
from rollart_flow.fields import Count, NotNegative, check_fields
from rollart_flow.registry import Requirement
from rollart_flow.text import one_line

if TYPE_CHECKING:
    from rollart_flow.metrics.sampled import SampledAttempt
    from rollart_flow.metrics.window import RunRecord

_KEY_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|HEADERS|AUTH", re.IGNORECASE)
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
_SHORTEST_KEY = 6


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker shows."""

    uri: str
    name: str
    run_id: str
    """Name with a digest, which no other run has."""
    settings: Mapping[str, Any]
    """Settings of the pipeline as JSON-serializable values; secrets are not among them."""
    folder: str | None
    """Local folder of the run; None in an object store."""


class TrackerSink(ABC):
    """An open tracker, used by one thread."""

    written: int | None = None
    """Number of the last record that the tracker had when it was opened, as it knows itself; None
    where it does not know, and its cursor says it."""

    @abstractmethod
    def write(self, record: "RunRecord") -> None:
        """Write one record.

        A record that was written before, perhaps in part, is not doubled. Where the record may
        still be lost with this process once this returns, the tracker knows `written`.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Write what is pending, and end."""


@dataclass(frozen=True)
class Tracker(ABC):
    """Settings of one tracker, which are the arguments of its name.

    Raises:
        SettingsError: names the setting whose value is not permitted.
    """

    samples: NotNegative = 4
    """Attempts in a table of samples; 0: no tables."""
    samples_every: Count = 10
    """Steps between two tables of samples; an evaluation always has one."""

    name: ClassVar[str]
    """Name in the registry."""
    requirements: ClassVar[tuple[Requirement, ...]] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        """Return the text that `named_tracker` reads."""
        given = (
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default or field.default is MISSING
        )
        arguments = ", ".join(given)
        return f"{self.name}({arguments})" if arguments else self.name

    @abstractmethod
    def open(self, run: TrackedRun) -> TrackerSink:
        """Open the tracker for a run, where it was left.

        Raises:
            ModuleNotFoundError: the tracker's library is not installed.
            Exception: whatever the tracker's library raises.
        """

    def opened(self, run: TrackedRun) -> TrackerSink:
        """Open the tracker like `open`.

        Raises:
            MissingExtraError: the tracker's library is not installed; says how to install it.
        """
        try:
            return self.open(run)
        except ModuleNotFoundError as error:
            extras = ",".join(sorted({each.extra for each in self.requirements} - {""}))
            if not extras:
                raise
            raise MissingExtraError(
                f"tracker {self.name} needs {error.name}; pip install 'rollart-flow[{extras}]'"
            ) from error

    def samples_of(self, record: "RunRecord") -> "tuple[SampledAttempt, ...]":
        """Return the attempts that the table of samples of a record has; empty: there is none."""
        from rollart_flow.metrics.samples import sampled_attempts
        from rollart_flow.metrics.window import RecordKind

        often = record.kind is RecordKind.EVALUATION or record.step % self.samples_every == 0
        return sampled_attempts(record, self.samples) if often else ()


def error_without_keys(error: BaseException) -> str:
    """Return an error as one line, with `***` for keys of this process's environment.

    Keys of a tracker's library are in variables that only the library reads; its messages may
    repeat them.
    """
    said = f"{type(error).__name__}: {error}"
    for name, value in os.environ.items():
        if _KEY_NAMES.search(name) and len(value) >= _SHORTEST_KEY:
            said = said.replace(value, "***")
    return one_line(_USER_OF_URL.sub("", said))
