"""What the papers print of a run beside its report: parts of its steps, tails of its batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from rollart_flow.simulation.record import Record, StepTimes


@dataclass(frozen=True, slots=True)
class Details:
    """Parts of the steps of a run and tails of its batches, over all steps."""

    reset_s: float
    """Mean over the steps of the longest reset among the attempts of the batch [s]."""
    longest_wait: float
    """Largest share of a step in which training waited for its batch."""
    longest_response: float
    """Mean over the steps of the longest response of a batch over the mean response."""
    most_turns: float
    """Mean over the steps of the most turns of an attempt of a batch over the mean."""


def details_of(record: Record) -> Details:
    """Measure a run that has at least one step."""
    batches = [
        [record.attempts[name] for name in record.batches[times.step].trajectory_ids]
        for times in record.steps
    ]
    return Details(
        fmean(max(attempt.script.reset_s for attempt in batch) for batch in batches),
        max(_waits(record.steps)),
        fmean(_longest([each.script.action_tokens for each in batch]) for batch in batches),
        fmean(_longest([len(each.script.turns) for each in batch]) for batch in batches),
    )


def _waits(steps: list[StepTimes]) -> list[float]:
    """Share of each step in which training waited; the first counts only if it is the only one."""
    if len(steps) == 1:
        return [(steps[0].formed - steps[0].asked) / steps[0].ended]
    pairs = pairwise(steps)
    return [(now.formed - now.asked) / (now.ended - before.ended) for before, now in pairs]


def _longest(lengths: Sequence[int]) -> float:
    return max(lengths) / fmean(lengths)
