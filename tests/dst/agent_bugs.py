"""Bugs of attempts whose agents are programs, which tests plant for the fuzzer to find."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rollart_flow.control.rollout.dispatch import StagePlace
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.gateway.core.agent_manager import AgentManager
from rollart_flow.gateway.core.retries import CallUnderWay
from rollart_flow.gateway.core.session import CaptureSession
from tests.dst.bug import Bug


def _let_it_ask_on(self: AgentManager, _: str) -> None:
    loop = asyncio.get_running_loop()
    self._grace = loop.call_later(self._stage_limits.grace_s, self._attempt.break_off)


async def _leave_the_key_open(self: AgentManager) -> None:
    key, self._key = self._key, ""
    if key and self._capture is not None:
        self._capture.finish("over")
        await self._capture.seal()


async def _wait_for_no_call(self: CaptureSession) -> None:
    self._sealed = True


def _trained_rows_only(self: CaptureSession, trajectory_id: str) -> Any:
    rows = _rows(self, trajectory_id)
    return [row for row in rows if row[0].withheld is None] or rows[:1]


def _always(self: object) -> bool:
    return True


def _stay(self: StagePlace) -> None:
    return None


_rows = CaptureSession.rows

AGENT_BUGS: Mapping[str, Bug] = {
    "agent-asks-on": Bug(
        AgentManager,
        "_hang_up",
        _let_it_ask_on,
        ("surplus is cancelled", "too old is aborted"),
        seeds=range(57, 64),
    ),
    "agent-key-open": Bug(AgentManager, "_end_session", _leave_the_key_open, ("sealed sessions",)),
    "agent-unsealed": Bug(CaptureSession, "seal", _wait_for_no_call, ("token fidelity",)),
    "agent-trained-rows-only": Bug(
        CaptureSession, "rows", _trained_rows_only, ("token fidelity", "whole episodes")
    ),
    "agent-trains-unanswered": Bug(
        CallUnderWay, "answered", property(_always), ("token fidelity",), seeds=range(21, 29)
    ),
    "agent-keeps-places": Bug(StagePlace, "leave", _stay, ("progress",)),
    "agent-shares-too-much": Bug(
        Recorder,
        "settled_tokens",
        property(len),
        ("whole episodes", "token fidelity"),
        seeds=range(132, 136),
    ),
}
"""Bugs by name."""
