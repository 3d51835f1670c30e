"""Scores of an evaluation: metrics of one domain with 95% confidence intervals, as pure functions.

A task that was attempted n times and solved c times has the unbiased estimate
1 - C(n - c, k) / C(n, k) of pass@k, the probability that at least one of k attempts solves it (Chen
et al. 2021, arXiv:2107.03374); the mean is pass@1. An interval is over tasks, since attempts at one
task are not independent:

- a fraction of tasks that were attempted once: Wilson's score interval;
- any other metric: the percentiles of a bootstrap over tasks, with a fixed seed; where all tasks
  have the same fraction, of which a bootstrap would be certain, Wilson's interval over tasks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean

import numpy as np

from rollart_flow.types import Trajectory, solved_by

_Z = 1.959963984540054
"""Quantile of the normal distribution for 95%."""
_RESAMPLES = 1000
_DRAWS_AT_ONCE = 1 << 20
"""Values that are drawn at once; their memory does not grow with the number of tasks."""
Interval = tuple[float, float] | None
"""Ends of a confidence interval; None where one task tells nothing of others."""


@dataclass(frozen=True, slots=True)
class Score:
    """A metric, its value, and its confidence interval."""

    metric: str
    value: float
    interval: Interval


def solved(trajectory: Trajectory) -> bool:
    """Return whether a trajectory is solved (see `solved_by`); an unscored one is not."""
    return bool(solved_by(trajectory.solved, trajectory.reward))


def pass_at(k: int, attempts: int, solved: int) -> float:
    """Return the unbiased estimate of pass@k of one task; k is at most the number of attempts."""
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def fraction_score(metric: str, tasks: Sequence[Sequence[Trajectory]], k: int = 1) -> Score:
    """Return pass@k of tasks, each with as many attempts; the fraction of solved ones for 1."""
    values = [pass_at(k, len(each), sum(map(solved, each))) for each in tasks]
    alike = len(tasks[0]) == 1 or len(set(values)) == 1
    interval = wilson(fmean(values), len(values)) if alike else bootstrap(values)
    return Score(metric, fmean(values), interval)


def sampled_scores(metric: str, tasks: Sequence[Sequence[Trajectory]]) -> Iterator[Score]:
    """Yield the scores of attempts at the node's temperature.

    Args:
        metric: `success_sampled` with the suffix of its set of tasks.
        tasks: the attempts at each task, equally many.
    """
    suffix, samples = metric.removeprefix("success_sampled"), len(tasks[0])
    yield fraction_score(metric, tasks)
    for k in _ks(samples):
        yield fraction_score(f"pass@{k}{suffix}", tasks, k)
    rewards = [fmean(each.reward or 0.0 for each in attempts) for attempts in tasks]
    turns = [fmean(len(each.turns) for each in attempts) for attempts in tasks]
    yield Score(f"reward_mean{suffix}", fmean(rewards), bootstrap(rewards))
    yield Score(f"turns_mean{suffix}", fmean(turns), bootstrap(turns))


def _ks(samples: int) -> list[int]:
    """The powers of two from 2 to the number of samples, and that number."""
    powers = [1 << n for n in range(1, samples.bit_length())]
    return sorted({*powers, samples} - {1})


def wilson(fraction: float, n: int) -> Interval:
    """Return Wilson's score interval of a fraction of n."""
    middle = (fraction + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(fraction * (1 - fraction) / n + _Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the 95% percentile interval of the mean over resampled tasks."""
    if len(values) < 2:
        return None
    given, random = np.asarray(values, np.float64), np.random.default_rng(0)
    at_once = max(1, _DRAWS_AT_ONCE // len(given))
    means = [
        random.choice(given, (min(at_once, _RESAMPLES - done), len(given))).mean(axis=1)
        for done in range(0, _RESAMPLES, at_once)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)
