"""Agents of one process: programs in boxes, the gateway that answers them, places of their stages.

The gateway listens in the process that drives the attempts, so that a call of a program needs no
call between processes before it reaches an engine. The boxes of programs are made by processes of
this node: a box of a pool sees the sockets of the pool's node.
"""

from collections.abc import Mapping
from pathlib import Path

from rollart_flow.control.environment import AsyncEnvironment, ChatCodec
from rollart_flow.control.plane import RolloutPlane
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.gateway.core.agent_manager import AgentManager, AgentStages, StageLimits
from rollart_flow.gateway.core.calls import Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.harness.checks import check_agent
from rollart_flow.harness.environment import AgentDomain
from rollart_flow.harness.harness import GRACE_S, PER_REQUEST, Harness
from rollart_flow.types import Assignment, AttemptLimits, Event, EventKind


class Agents:
    """The agents of one process, in its event loop.

    Args:
        agents: the program of each domain that has one.
        domains: all domains by name.
        limits: limits of an attempt, by domain.
        plane: the process's part of the control plane.
        codec: codec of the policy.
        processes: idle processes of environments.
        source: pipeline file, for domains that cannot be imported by name.
        sandbox: kind of the boxes; empty: what `ROLLART_SANDBOX` says.

    Raises:
        SettingsError: a program is not installed on this node, or cannot work with the policy.
    """

    def __init__(
        self,
        agents: Mapping[str, Harness],
        domains: Mapping[str, Domain],
        limits: Mapping[str, AttemptLimits],
        plane: RolloutPlane,
        codec: ChatCodec,
        processes: WarmProcesses,
        source: Path | None,
        sandbox: str = "",
    ) -> None:
        for agent in agents.values():
            check_agent(agent, codec)
        self._agents, self._domains, self._limits = agents, domains, limits
        self._plane, self._codec = plane, codec
        self._processes, self._source = processes, source
        self._sandbox = sandbox
        self._gateway = GatewayServer(on_unknown_key=self._unknown_key)
        self._unknown_keys = 0
        """Requests with unknown keys that are reported."""
        self._stages = {
            name: AgentStages(agent.init_slots, agent.run_slots, agent.judge_slots)
            for name, agent in agents.items()
        }

    async def start(self) -> None:
        """Listen for the calls of programs."""
        await self._gateway.start()

    def manager(self, assignment: Assignment) -> AgentManager:
        """Return the manager of one attempt, which is not started."""
        name = assignment.task.domain
        agent = self._agents[name]
        socket = str(self._gateway.socket)
        domain = AgentDomain(
            self._domains[name], agent, socket, self._sandbox, self._limits[name].context_tokens
        )
        stages = StageLimits(
            init_s=agent.init_timeout_s,
            run_s=agent.timeout_s,
            judge_s=agent.judge_timeout_s,
            grace_s=GRACE_S,
        )

        def make() -> AsyncEnvironment:
            return open_environment(
                domain,
                timeout_s=stages.longest_s,
                source=self._source,
                processes=self._processes,
            )

        return AgentManager(
            assignment,
            make,
            self._codec,
            self._limits[name],
            self._plane.attempt_context(domain.version),
            gateway=self._gateway,
            capture=_capture_limits(agent),
            stages=self._stages[name],
            stage_limits=stages,
        )

    def _unknown_key(self, count: int) -> None:
        """Report requests with unknown keys: the first, and then each time they have doubled.

        A program can send any number of them.
        """
        if count >= 2 * self._unknown_keys:
            self._report_unknown_keys(count)

    def _report_unknown_keys(self, count: int) -> None:
        detail = {"requests": count - self._unknown_keys}
        self._plane.emit(Event(EventKind.UNKNOWN_KEY, self._plane.name, detail=detail))
        self._unknown_keys = count

    async def close(self) -> None:
        """Stop to listen; all attempts have ended."""
        await self._gateway.stop()
        count = self._gateway.counters.refused[Refusal.KEY]
        if count > self._unknown_keys:
            self._report_unknown_keys(count)


def _capture_limits(agent: Harness) -> CaptureLimits:
    return CaptureLimits(
        max_calls=agent.max_calls,
        max_tokens=agent.max_tokens,
        repeats_lost=agent.profile().repeats_lost,
        volatile=tuple(agent.volatile),
        per_request=agent.builder == PER_REQUEST,
        trained=frozenset(map(CallKind, agent.trains)),
    )
