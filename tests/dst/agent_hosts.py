"""The agents of one process of rollout workers: real managers over programs that fail."""

import math

from rollart_flow.control.plane import RolloutPlane
from rollart_flow.gateway.core.agent_manager import AgentManager, AgentStages
from rollart_flow.types import Assignment, AttemptLimits, Trajectory
from tests.dst.agent_boxes import FaultyBox, OpenKeys
from tests.dst.agent_codec import LetterChat
from tests.dst.agent_plans import AgentPlan
from tests.dst.world import World


class HostAgents:
    """The agents of one process."""

    def __init__(self, world: World, plan: AgentPlan, plane: RolloutPlane) -> None:
        self._world = world
        self._plan = plan
        self._plane = plane
        self._stages = AgentStages(*plan.slots)
        self._limits = AttemptLimits(
            context_tokens=plan.context_tokens,
            step_timeout_s=plan.stages.init_s,
            trajectory_timeout_s=math.inf,
        )

    def at(self, assignment: Assignment) -> bool:
        """Whether a program works at a task."""
        return assignment.task.domain in self._plan.domains

    async def run(self, assignment: Assignment) -> tuple[Trajectory, ...]:
        """Run an attempt to its end, after which no key of it is open."""
        world, keys = self._world, OpenKeys()
        manager = AgentManager(
            assignment,
            lambda: FaultyBox(world.chance, world.plan.faults, self._plan, keys),
            LetterChat(),
            self._limits,
            self._plane.attempt_context(),
            gateway=keys,
            capture=self._plan.capture,
            stages=self._stages,
            stage_limits=self._plan.stages,
        )
        branches = await self._plane.run(manager)
        if keys.sessions:
            name = assignment.trajectory_id
            world.monitor.violated("sealed sessions", f"a key of {name} is open after its end")
        return branches
