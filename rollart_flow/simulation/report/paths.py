"""The longest path through the trainings, transfers and trajectories that follow one another.

The invariant: no schedule of the same staleness, and no choice of swaps, ends earlier.
"""

import math
import operator
from collections.abc import Sequence

from rollart_flow.control.schedule.staleness import Bound

Oldest = tuple[float, float]
"""Steps from the oldest version that a batch may hold to the batch's own, if the engines serve the
version that it trains, and if they serve the one before; infinite without a bound."""

_State = tuple[float, tuple[float, ...]]
"""End of the last training, and the times from which each version is served [s]."""
_MANY = 1_000
"""Largest number of versions that is searched; a bound that allows more allows any."""


def path_s(
    steps: Sequence[tuple[float, float]],
    before: Sequence[float],
    push_s: float,
    oldest: Oldest,
    begun: Sequence[float] = (),
    swap_s: float = 0.0,
) -> float:
    """Least time until the last of these steps is trained [s].

    Let F(s) be the time at which the batch of step s is formed, E(s) the end of its training, and
    X(v) the time from which the engines serve version v. Under every schedule F(s) >= E(s - 1) and
    X(v) >= E(v) + `push_s` + `swap_s`. The engines serve version s - 1 or s - 2 at F(s). In the
    former case F(s) >= X(s - 1), in the latter X(s - 1) >= F(s) + `swap_s`. If a is the oldest
    version that the bound then allows, the longest trajectory began at X(a) at the earliest, and
    F(s) >= X(a) + its chain, and + `swap_s` if the engines serve another version than a at F(s),
    since they sample nothing meanwhile. All of these are sums and maxima, so that for given cases
    the earliest times are the least, and the best combination of cases is a lower bound. With a
    staleness of one version, the slower case alone gives a mean of at least (training + transfer +
    longest) / 3.

    Args:
        steps: training of each step, and the chain of its longest trajectory [s].
        before: times at which the steps before these were trained, none of them above 0 [s].
        push_s: transfer of a version from training to the engines; version 0 needs none.
        oldest: the oldest versions that a batch may hold.
        begun: for each step, the time at which its trajectories that began before these steps have
            ended, if they never wait from then on; 0 for none, and for steps without an entry [s].
        swap_s: time for which the engines are suspended for a swap of versions [s].
    """
    count = len(before)
    swaps: tuple[float, ...] = ()
    if before:
        swaps = -math.inf, *(ended + push_s + swap_s for ended in before[:-1])
    states = [(before[-1] if before else 0.0, swaps)]
    needed = int(max((age for age in oldest if math.isfinite(age)), default=1))
    ends = (*begun, *(0.0 for _ in range(len(steps) - len(begun))))
    for step, ((training, chain), end) in enumerate(zip(steps, ends, strict=True), count + 1):
        after: list[_State] = []
        for ended, swaps in states:
            readable = ended + push_s + swap_s if step > 1 else 0.0
            for late, age in enumerate(oldest):
                if late and (step == 1 or age < 2):
                    continue
                known = swaps if late else (*swaps, readable)
                # Who begins under the served version meets no swap.
                oldest_known = known[max(0, step - int(min(age, step)))] + swap_s
                started = min(oldest_known, known[-1])
                formed = max(end, ended, started + chain, -math.inf if late else readable)
                swap = max(readable, formed + swap_s) if late else readable
                after.append((formed + training, (*swaps, swap)))
        states = _undominated(after, needed)
    return min(ended for ended, _ in states)


def _undominated(states: list[_State], needed: int) -> list[_State]:
    """Return the states that no other one precedes in every time on which later steps depend."""
    kept: list[_State] = []
    for ended, swaps in sorted(states):
        if not any(_as_early(other[-needed:], swaps[-needed:]) for _, other in kept):
            kept.append((ended, swaps))
    return kept


def _as_early(one: tuple[float, ...], two: tuple[float, ...]) -> bool:
    return all(map(operator.le, one, two))


def oldest_versions(bound: Bound) -> Oldest:
    """The oldest versions that a batch may hold under a bound, the engines at most one behind."""

    def oldest(served: int) -> float:
        reference = bound.reference(served, _MANY)
        late = (n for n in range(1, _MANY) if bound.is_stale(reference, _MANY - n))
        return next(late, math.inf)

    return oldest(_MANY), oldest(_MANY - 1)
