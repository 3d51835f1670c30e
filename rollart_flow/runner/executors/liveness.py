"""Detection of a run's dead and hanging processes.

Invariant: a process that is merely busy does not count as dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from rollart_flow.resources import Remote, WorkerHandle

if TYPE_CHECKING:
    from rollart_flow.trainers.worker import TrainWorker

    Answers = dict[str, ray.ObjectRef[Any]]

_ANSWER_S = 60.0
"""Longest time to wait for actors to report that they are alive [s]."""
_SOON_S = 10.0
"""Time to wait for the first answers, after which an unresponsive rank may count as hanging [s]."""


def gone(
    actors: Mapping[str, Remote[Any]], ranks: Sequence[WorkerHandle[TrainWorker]]
) -> tuple[str, ...]:
    """Return the names of dead actors or, if a rank has lost another one, of hanging ranks.

    If a rank has lost another one and every rank answers, the names are those of the ranks that
    report the loss.

    Args:
        actors: actors of any class, by name.
        ranks: ranks of a trainer.
    """
    answers: Answers = {n: actor.answer() for n, actor in actors.items()}
    answers |= {rank.name: rank.call.lost.start() for rank in ranks}
    given = _given(answers, _SOON_S)
    if died := tuple(name for name, answer in given.items() if _died(answer)):
        return died
    names = [rank.name for rank in ranks]
    if lost := tuple(name for name in names if name in given and _lost(given[name])):
        return tuple(name for name in names if name not in given) or lost
    # An actor that does not answer in time is busy, not dead.
    return tuple(name for name, answer in _given(answers, _ANSWER_S).items() if _died(answer))


def _given(answers: Answers, timeout_s: float) -> Answers:
    """Return the answers that arrive within a time limit."""
    given, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=timeout_s)
    return {name: answer for name, answer in answers.items() if answer in given}


def _died(answer: ray.ObjectRef[Any]) -> bool:
    """Return whether an answer shows that its actor has died."""
    try:
        ray.get(answer)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayError:  # unreachable for a moment, as far as Ray knows
        return False
    return False


def _lost(answer: ray.ObjectRef[Any]) -> bool:
    """Return whether a rank reports that it has lost another one."""
    try:
        return bool(ray.get(answer))
    except ray.exceptions.RayError:
        return False
