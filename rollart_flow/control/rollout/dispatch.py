"""Dispatch: what a schedule means for the attempts of one process.

How they wait for one another (barriers, stages), and which of them share a worker. The invariant:
attempts that wait for one another are given one `Dispatch`, that of their host.
"""

from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.rollout.lockstep import Lockstep
from rollart_flow.control.rollout.stages import Stages, StageSlot
from rollart_flow.control.schedule.schedules import Schedule
from rollart_flow.types import Assignment


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How the attempts of one process are run side by side; by default each as it likes."""

    lockstep: Lockstep | None = None
    stages: Stages | None = None
    prompt_replication: bool = True

    @staticmethod
    def of(schedule: Schedule) -> "Dispatch":
        """A new one, for one process."""
        turns, ends = schedule.lockstep, not schedule.queue_scheduling
        return Dispatch(
            lockstep=Lockstep(turns=turns, ends=ends) if turns or ends else None,
            stages=None if schedule.stages is None else Stages(schedule.stages),
            prompt_replication=schedule.prompt_replication,
        )

    def passage(self, assignment: Assignment) -> StageSlot | None:
        """The way of an attempt through the stages; None where there are none."""
        return None if self.stages is None else StageSlot(self.stages, assignment.trajectory_id)

    def placement(self, assignment: Assignment) -> int | None:
        """`GenerationRequest.placement` of an attempt."""
        return None if self.prompt_replication else group_cursor(assignment.group_id)


FREE = Dispatch()
"""Nobody waits for anybody."""
