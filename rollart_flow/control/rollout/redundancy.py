"""Redundant attempts outside the scheduler: the slowest ones of a group are cancelled.

The invariant: every attempt of the group leaves its branches, whatever becomes of it; those that
count are the first that ended well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.rollout.attempt_manager import AttemptManager
from rollart_flow.episodes import like
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory
from rollart_flow.types.trajectories import unscored

Branches = tuple[Trajectory, ...]
Run = Callable[[AttemptManager], Awaitable[Branches]]


async def first_of(managers: Sequence[AttemptManager], needed: int, run: Run) -> list[Branches]:
    """Run attempts until as many as are needed ended well, and cancel the others.

    Args:
        managers: at least as many as are needed.
        needed: number of attempts that count.
        run: runs an attempt to its end and scores it.

    Returns:
        The branches of each attempt: those that ended well in the order of their ends, then
        those that failed, then those that were surplus.
    """
    tasks = {asyncio.ensure_future(run(manager)): manager for manager in managers}
    well: list[Branches] = []
    failed: list[Branches] = []
    surplus: list[Branches] = []
    pending = set(tasks)
    try:
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(ended, key=list(tasks).index):
                branches = task.result()
                if len(well) == needed:
                    surplus.append(_surplus(branches))
                else:
                    (well if branches[0].outcome in TRAINABLE else failed).append(branches)
            if len(well) == needed:
                for task in pending:
                    tasks[task].cancel(_cancellation(tasks[task].assignment.trajectory_id))
    finally:
        for task in pending:
            task.cancel()
    return [*well, *failed, *surplus]


def _cancellation(trajectory_id: str) -> Cancellation:
    return Cancellation(trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)


def _surplus(branches: Branches) -> Branches:
    """Return an attempt as redundant, also if it ended before it could be cancelled."""
    cancelled = _cancellation(branches[0].trajectory_id)
    first = unscored(branches[0])
    return like(branches, replace(first, outcome=cancelled.outcome, reason=cancelled.reason))
