"""Redundant attempts outside the scheduler: the slowest ones of a group are cancelled.

The invariant: every attempt of the group leaves a trajectory, whatever becomes of it; those that
count are the first that ended well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory

Run = Callable[[EnvManager], Awaitable[Trajectory]]


async def first_of(managers: Sequence[EnvManager], needed: int, run: Run) -> list[Trajectory]:
    """Run attempts until as many as are needed ended well, and cancel the others.

    Args:
        managers: at least as many as are needed.
        needed: number of attempts that count.
        run: runs an attempt to its end and scores it.

    Returns:
        The trajectories: those that ended well in the order of their ends, then those that failed,
        then those that were surplus.
    """
    tasks = {asyncio.ensure_future(run(manager)): manager for manager in managers}
    well: list[Trajectory] = []
    failed: list[Trajectory] = []
    surplus: list[Trajectory] = []
    pending = set(tasks)
    try:
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(ended, key=list(tasks).index):
                trajectory = task.result()
                if len(well) == needed:
                    surplus.append(_surplus(trajectory))
                else:
                    (well if trajectory.outcome in TRAINABLE else failed).append(trajectory)
            if len(well) == needed:
                for task in pending:
                    tasks[task].cancel(_cancellation(tasks[task].assignment.trajectory_id))
    finally:
        for task in pending:
            task.cancel()
    return [*well, *failed, *surplus]


def _cancellation(trajectory_id: str) -> Cancellation:
    return Cancellation(trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)


def _surplus(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory as redundant, also if it ended before it could be cancelled."""
    cancelled = _cancellation(trajectory.trajectory_id)
    unscored = replace(trajectory, reward=None, reward_parts=None, scored_at=None)
    return replace(unscored, outcome=cancelled.outcome, reason=cancelled.reason)
