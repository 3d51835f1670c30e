"""Which processes of a run live, die or hang.

The invariant: whoever is only busy is not taken for dead.
"""

from collections.abc import Mapping
from typing import Any

import ray

_ANSWER_S = 60.0
"""Longest time to wait for actors to say that they live [s]."""
_SOON_S = 10.0
"""The same, where one of them says that another one hangs."""


def gone(actors: Mapping[str, Any], ranks: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of those that have died; where a rank has lost another one, of those that hang.

    Args:
        actors: any, by name.
        ranks: of a trainer (`TrainWorker`).
    """
    answers = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
    answers |= {name: actor.lost.remote() for name, actor in ranks.items()}
    given = _given(answers, _SOON_S)
    if died := tuple(name for name, answer in given.items() if _died(answer)):
        return died
    if lost := tuple(name for name in ranks if name in given and _lost(given[name])):
        return tuple(name for name in ranks if name not in given) or lost
    # Who does not answer in time is busy, not dead.
    return tuple(name for name, answer in _given(answers, _ANSWER_S).items() if _died(answer))


def _given(answers: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Those of the answers that are there within a time."""
    given, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=timeout_s)
    return {name: answer for name, answer in answers.items() if answer in given}


def _died(answer: Any) -> bool:
    """Whether an answer is that its actor has died."""
    try:
        ray.get(answer)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayError:  # unreachable for a moment, as far as Ray knows
        return False
    return False


def _lost(answer: Any) -> bool:
    """Whether a rank says that it has lost another one."""
    try:
        return bool(ray.get(answer))
    except ray.exceptions.RayError:
        return False
