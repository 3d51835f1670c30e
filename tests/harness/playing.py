"""Parts of the tests that run installed programs: which are there, and what their calls were."""

import asyncio
import json
from collections.abc import Callable

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.exchange import CallKind, Evidence
from rollart_flow.harness.profiles.installed import InstalledProfile
from rollart_flow.harness.registry import AGENTS
from rollart_flow.types import Trajectory
from tests.harness.clients import Workplace, begun, delivered

KNOWN = (Evidence.ECHO, Evidence.STRUCTURE, Evidence.TOKENS)
FORGETS = {"mini-swe-agent": [None, 0, 1, 1, 3]}
"""Parents of calls of programs that leave out an answer whose calls cannot be run."""


def missing(name: str) -> str:
    """Why a program cannot be run; empty if it can."""
    try:
        AGENTS.load(name)().programs()
    except SettingsError as error:
        return str(error)
    return ""


def installed(*names: str) -> list[object]:
    """Parameters for programs, skipped where they are not installed."""
    chosen = names or [
        name for name, kind in AGENTS.variants() if issubclass(kind, InstalledProfile)
    ]
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=why), id=name)
        for name in chosen
        if (why := missing(name)) or True
    ]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other tasks of the loop bring about."""
    while not holds():  # noqa: ASYNC110  programs of others say nothing
        await asyncio.sleep(0.01)


def kinds(place: Workplace) -> list[CallKind]:
    return [each.kind for each in place.rig.exchanges]


async def rows_of(place: Workplace) -> list[Trajectory]:
    return await place.rig.trajectories()


def report(place: Workplace, rows: list[object]) -> str:
    """Figures of a session in one line, which `pytest -rP` shows."""
    calls = place.rig.exchanges
    evidence = [each.evidence.value for each in calls]
    figures = {
        "program": place.name, "calls": len(calls), "prompt_tokens": calls[0].answer_start,
        "bytes": len(calls[0].request), "rows": len(rows), "begun": len(begun(calls)),
        "evidence": {each: evidence.count(each) for each in sorted(set(evidence))},
        "kinds": sorted({each.kind.value for each in calls}),
        "delivered": round(delivered(rows), 4),  # type: ignore[arg-type]
        "refused": [each.refusal for each in calls if each.refusal],
    }  # fmt: skip
    line = json.dumps(figures)
    print(line)
    return line
