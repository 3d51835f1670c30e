"""Dispatch: the rules of a schedule for the attempts of one process.

The rules define how attempts wait for one another (barriers, stages) and which attempts share an
inference worker. The invariant: attempts that wait for one another share the `Dispatch` of their
rollout worker.
"""

from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.rollout.lockstep import Lockstep
from rollart_flow.control.rollout.stages import Stages, StageSlot
from rollart_flow.control.schedule.declarations import Barrier, GroupPlacement
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.types import Assignment


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Rules for concurrent attempts of one process; by default attempts are independent."""

    lockstep: Lockstep | None = None
    stages: Stages | None = None
    group_placement: GroupPlacement = GroupPlacement.SPREAD

    @staticmethod
    def of(schedule: Schedule) -> "Dispatch":
        """Create the dispatch of a schedule for one process."""
        turns, ends = Barrier.TURNS in schedule.barriers, Barrier.ENDS in schedule.barriers
        return Dispatch(
            lockstep=Lockstep(turns=turns, ends=ends) if turns or ends else None,
            stages=None if schedule.stages is None else Stages(schedule.stages),
            group_placement=schedule.group_placement,
        )

    def passage(self, assignment: Assignment) -> StageSlot | None:
        """Return the stage slot of an attempt, or None without stages."""
        return None if self.stages is None else StageSlot(self.stages, assignment.trajectory_id)

    def placement(self, assignment: Assignment) -> int | None:
        """Return `GenerationRequest.placement` for an attempt."""
        if self.group_placement is GroupPlacement.SPREAD:
            return None
        return group_cursor(assignment.group_id)


FREE = Dispatch()
"""Dispatch without barriers, stages or shared placement."""
