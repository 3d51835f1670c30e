"""Alarms: signs that a run is in trouble, each with a threshold that is a setting.

An alarm is raised once, when its sign has lasted, and ends at the first figure without it; both are
events of kind `alarm`. The rules are functions of the rows of `steps` and of a clock that is passed
in; nothing here waits or reads a table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rollart_flow.fields import Count, NotNegative, Positive, Within, check_fields
from rollart_flow.text import counted
from rollart_flow.types.events import Event, EventKind

Fraction = Annotated[float, Within(0, 1)]
"""A fraction of a whole."""


@dataclass(frozen=True)
class Alarms:
    """Thresholds of the alarms of a run.

    Raises:
        SettingsError: names the threshold that is not permitted.
    """

    no_progress_s: Positive = 3600.0
    """Seconds without a training step."""
    zero_variance: Fraction = 0.9
    """Fraction of a batch's groups whose rewards were all equal, which teach nothing."""
    staleness: Fraction = 1.0
    """Mean staleness or lag of a batch as a fraction of the schedule's bound on it, if that is 2 or
    more: with a bound of 1, batches are at it by design."""
    mismatch_kl: Positive = 0.1
    """Divergence of the trainer's logprobs from the engine's for the same weights [nats per token],
    where it is computed: `steps.mismatch_kl` over tokens of lag 0."""
    leaked: NotNegative = 0
    """Processes that the boxes of a step leave behind, above which it is too many."""
    disk_free: Fraction = 0.03
    """Fraction of the run's disk that is free, below which it is nearly full."""
    patience: Count = 3
    """Consecutive steps with a sign of the batch or the logprobs before it is an alarm."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Sign:
    """One figure that an alarm watches, with its threshold."""

    alarm: str
    """Name of the alarm, which is that of its setting."""
    value: float
    threshold: float
    troubled: bool
    patience: int = 1
    """Consecutive figures that make an alarm."""
    said: str = ""
    """Sentence about the trouble, for a person."""

    def event(self, state: str, step: int | None) -> Event:
        """Return the row of `events` for the begin or the end of an alarm."""
        detail = {
            "state": state,
            "value": round(self.value, 6),
            "threshold": self.threshold,
            "setting": f"pipeline.alarms.{self.alarm}",
            "said": self.said,
        }
        return Event(EventKind.ALARM, self.alarm, step=step, detail=detail)


RAISED, ENDED = "raised", "ended"


class AlarmBook:
    """The alarms that are raised now, and how long each sign has lasted."""

    def __init__(self) -> None:
        self._lasted: dict[str, int] = {}
        self._raised: set[str] = set()

    def restore(self, raised: Iterator[str] | tuple[str, ...]) -> None:
        """Take over the alarms that an earlier session raised and did not end."""
        self._raised = set(raised)

    def take(self, sign: Sign, step: int | None = None) -> Event | None:
        """Note a figure; return the event if it raises or ends an alarm."""
        self._lasted[sign.alarm] = self._lasted.get(sign.alarm, 0) + 1 if sign.troubled else 0
        if not sign.troubled and sign.alarm in self._raised:
            self._raised.discard(sign.alarm)
            return sign.event(ENDED, step)
        if self._lasted[sign.alarm] < sign.patience or sign.alarm in self._raised:
            return None
        self._raised.add(sign.alarm)
        return sign.event(RAISED, step)


def step_signs(
    alarms: Alarms, row: Mapping[str, Any], *, groups: int, age: float | None, bound: int
) -> Iterator[Sign]:
    """Give the signs that a row of `steps` shows.

    Args:
        alarms: the thresholds.
        row: the row.
        groups: groups of a batch.
        age: mean age of the batch, staleness or lag, that the schedule bounds; None if neither.
        bound: largest age that the schedule permits.
    """
    share = row["zero_variance_groups"] / groups
    yield Sign(
        "zero_variance", share, alarms.zero_variance, share >= alarms.zero_variance,
        alarms.patience, f"{share:.0%} of the groups have equal rewards and teach nothing",
    )  # fmt: skip
    if age is not None and bound >= 2:
        share = age / bound
        yield Sign(
            "staleness", share, alarms.staleness, share >= alarms.staleness, alarms.patience,
            f"batches are on average {age:.2g} versions old, the bound is {bound}",
        )  # fmt: skip
    # Without tokens of the very version that is trained, it is a distance between two versions.
    if row["mismatch_kl"] is not None and any(each["lag"] == 0 for each in row["lags"] or ()):
        value = row["mismatch_kl"]
        yield Sign(
            "mismatch_kl", value, alarms.mismatch_kl, value > alarms.mismatch_kl, alarms.patience,
            f"logprobs of trainer and engine differ by {value:.3g} nats per token",
        )  # fmt: skip


def progress_sign(alarms: Alarms, idle_s: float) -> Sign:
    """Return the sign of a run that has been without a step for a time."""
    limit = alarms.no_progress_s
    said = f"no training step for {idle_s:.0f} s; `rollart show RUN --waits` says who waits"
    return Sign("no_progress_s", idle_s, limit, idle_s >= limit, said=said)


def leak_sign(alarms: Alarms, leaked: int) -> Sign:
    """Return the sign of the processes that boxes have left behind."""
    said = f"boxes left {counted(leaked, 'process')} behind"
    return Sign("leaked", leaked, alarms.leaked, leaked > alarms.leaked, said=said)


def disk_sign(alarms: Alarms, free: float) -> Sign:
    """Return the sign of a disk of which a fraction is free."""
    said = f"{free:.1%} of the run's disk is free"
    return Sign("disk_free", free, alarms.disk_free, free < alarms.disk_free, said=said)
