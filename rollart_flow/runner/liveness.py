"""Detection of a run's dead and hanging processes.

Invariant: a process that is merely busy does not count as dead.
"""

from collections.abc import Mapping
from typing import Any

import ray

_ANSWER_S = 60.0
"""Longest time to wait for actors to report that they are alive [s]."""
_SOON_S = 10.0
"""Time to wait for the first answers, after which an unresponsive rank may count as hanging [s]."""


def gone(actors: Mapping[str, Any], ranks: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of dead actors or, if a rank has lost another one, of hanging ranks.

    If a rank has lost another one and every rank answers, the names are those of the ranks that
    report the loss.

    Args:
        actors: actors of any class, by name.
        ranks: ranks of a trainer (`TrainWorker`), by name.
    """
    answers = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
    answers |= {name: actor.lost.remote() for name, actor in ranks.items()}
    given = _given(answers, _SOON_S)
    if died := tuple(name for name, answer in given.items() if _died(answer)):
        return died
    if lost := tuple(name for name in ranks if name in given and _lost(given[name])):
        return tuple(name for name in ranks if name not in given) or lost
    # An actor that does not answer in time is busy, not dead.
    return tuple(name for name, answer in _given(answers, _ANSWER_S).items() if _died(answer))


def _given(answers: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the answers that arrive within a time limit."""
    given, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=timeout_s)
    return {name: answer for name, answer in answers.items() if answer in given}


def _died(answer: Any) -> bool:
    """Return whether an answer shows that its actor has died."""
    try:
        ray.get(answer)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayError:  # unreachable for a moment, as far as Ray knows
        return False
    return False


def _lost(answer: Any) -> bool:
    """Return whether a rank reports that it has lost another one."""
    try:
        return bool(ray.get(answer))
    except ray.exceptions.RayError:
        return False
