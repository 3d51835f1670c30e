"""Verdicts on an attempt, and the digests that identify the task that was judged.

An environment reports the outcome of its verifier in `info` of its last step:

- `info["verdicts"]`: a list of verdicts, each as `Verdict.as_json()`, rows of the table
  `verdicts`;
- `info["verifier"]`: digest of the verifier;
- `info["diff"]`: the change of files that the attempt left, as a unified diff;
- `info["suspicions"]`: a list of texts "kind: detail", such as "touched_tests: tests/test_a.py".

`types.verdict_checks` checks them. If several steps report, the last value of each key counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Admitted: TypeAlias = Literal["required", "known", "any"]
"""Rule by which tasks are trained on; see `pipeline.producing.Tasks.admitted`."""


class VerdictKind(StrEnum):
    """Kind of thing that the key of a verdict names."""

    TEST = "test"
    REWARD = "reward"


class VerdictSource(StrEnum):
    """Source of a verdict of the run itself; a later rescoring has a name of its own."""

    ENVIRONMENT = "environment"
    REWARD = "reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one test, or one part of a reward."""

    key: str
    """Name of the test, or of the part of the reward."""
    kind: VerdictKind = VerdictKind.TEST
    passed: bool | None = None
    """Whether the test passed; None for a reward, and for a test that did not run."""
    value: float | None = None
    """Value of the part of the reward; None for a test."""
    seconds: float | None = None
    """Seconds that it took; None if they were not measured."""
    message: str | None = None
    """Why it failed, in one line; None if there is nothing to say."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "key": self.key,
            "kind": self.kind.value,
            "passed": self.passed,
            "value": self.value,
            "seconds": self.seconds,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Verdict":
        """Return the verdict that `as_json` describes.

        Raises:
            TypeError: a field is unknown, or the key is missing.
            ValueError: the kind is unknown.
        """
        return cls(**{**values, "kind": VerdictKind(values.get("kind", VerdictKind.TEST))})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """Report of an environment on an attempt, besides rewards; None where it says nothing."""

    verdicts: tuple[Verdict, ...] | None = None
    verifier: str | None = None
    diff: str | None = None
    suspicions: tuple[str, ...] | None = None

    def updated(self, later: "AttemptReport") -> "AttemptReport":
        """Return this report with everything that a later one says."""
        return AttemptReport(
            verdicts=self.verdicts if later.verdicts is None else later.verdicts,
            verifier=self.verifier if later.verifier is None else later.verifier,
            diff=self.diff if later.diff is None else later.diff,
            suspicions=self.suspicions if later.suspicions is None else later.suspicions,
        )

    def columns(self) -> dict[str, Any]:
        """Return the fields of a `Trajectory` of the same names."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDigests:
    """Digests that a check of a task holds for: it is checked again if one of them changes."""

    task: str
    """Digest of the task's own files or payload."""
    image: str = ""
    """Digest of the root file system that it runs in; empty if it needs none."""
    verifier: str = ""
    """Digest of what judges it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Result of a verifier on the change of files that an attempt left; see `Domain.judge`."""

    reward: float
    success: bool
    verdicts: tuple[Verdict, ...] = ()
    """Outcome of each test and each part of the reward."""
    verifier: str = ""
    """Digest of the verifier, as in `TaskDigests`."""
