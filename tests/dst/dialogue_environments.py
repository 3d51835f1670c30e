"""Environments that fail as others do, and whose answers make attempts branch."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from rollart_flow.types import Observation, Retry, Return, SubAgent, Tool, ToolCall
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import system, tool_result, user
from tests.dst.dialogue_plans import DialoguePlan
from tests.dst.environments import FaultyEnvironment
from tests.dst.plans import Faults

ADD = Tool("add", "Add a letter.", {"type": "object", "properties": {"a": {"type": "string"}}})
"""Tool of environments that converse."""
_FIRST = (system("s"), user("go"))
_TRIES = (-1, -1, 0)
"""Turns that are tried again."""


class DialogueEnvironment(FaultyEnvironment):
    """Begins sub-agents, ends them, and tries turns again.

    Args:
        chance: source of all randomness.
        faults: probabilities of failures of a call.
        plan: what it does.
    """

    ends = 0.25
    """Each turn may fail, so that groups without replacements need short episodes."""

    def __init__(self, chance: Random, faults: Faults, plan: DialoguePlan) -> None:
        super().__init__(chance, faults)
        self._plan = plan
        self.tools: Sequence[Tool] | None = (ADD,) if plan.converses else None
        self._callers: list[Sequence[ToolCall]] = []
        """Calls that the sub-agents which run will answer."""

    async def reset(self, seed: int, task: str) -> tuple[Observation, Mapping[str, object]]:
        await self._answer()
        return _FIRST, {}

    def _shown(self, action: Any) -> StepObservation:
        plan, chance = self._plan, self._chance
        calls = action.tool_calls if plan.converses else ()
        if chance.random() < plan.breaches:
            return self._breach()
        if chance.random() < plan.sub_agents:
            return self._sub_agent(calls)
        if self._callers and chance.random() < plan.returns:
            return self._return()
        if chance.random() < plan.retries:
            return Retry(chance.choice(_TRIES), self._results(calls))
        return self._results(calls)

    def _sub_agent(self, calls: Sequence[ToolCall]) -> SubAgent:
        self._callers.append(calls)
        return SubAgent(self._chance.choice((_FIRST, "sub")), tuple(self.tools or ()))

    def _return(self) -> Return:
        """Return to the caller, which sometimes returns at once, or begins another sub-agent."""
        calls = self._callers.pop()
        draw = self._chance.random()
        if draw < 0.2:
            return Return(self._sub_agent(calls))
        if draw < 0.4 and self._callers:
            return Return(self._return())
        return Return(self._results(calls))

    def _results(self, calls: Sequence[ToolCall]) -> Observation:
        results = [tool_result(call, "r") for call in calls]
        if results and self._chance.random() < 0.8:
            return tuple(results)
        return "next" if not results else (*results, user("next"))

    def _breach(self) -> StepObservation:
        """An answer that ends the attempt, or that its template refuses."""
        tools = () if self._plan.converses else (ADD,)
        wrong: Sequence[StepObservation] = (
            Return("next") if not self._callers else Retry(99, "next"),
            (system("late"),),
            Retry(-99, "next"),
            SubAgent((user("a"), system("late")), tools),
        )
        return self._chance.choice(wrong)
