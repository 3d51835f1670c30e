"""Waiting for actors whose nodes may go."""

import asyncio
from collections.abc import Callable

import pytest
import ray

from rollart_flow.errors import WorkerAwayError
from rollart_flow.resources import Placement
from rollart_flow.resources.nodes import while_placed

PLACED = Placement("engine-h800-0", "generation", "H800", (), group=object())
EVERY_S = 0.001
"""Time after which a node is checked [s]."""


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], str]], None]:
    """Have Ray's table of placement groups say the state that a function returns."""

    def set_state(state: Callable[[], str]) -> None:
        def table(group: object) -> dict[str, str]:
            assert group is PLACED.group
            return {"state": state()}

        monkeypatch.setattr(ray.util, "placement_group_table", table)

    return set_state


def test_an_actor_that_waits_for_a_node_is_not_waited_for(
    groups: Callable[[Callable[[], str]], None],
) -> None:
    states = ["CREATED", "RESCHEDULING"]
    groups(lambda: states.pop(0))

    async def scenario() -> None:
        silent = asyncio.get_running_loop().create_future()
        with pytest.raises(WorkerAwayError, match="no node has a free H800 now"):
            await while_placed(PLACED, silent, EVERY_S)
        assert silent.cancelled()

    asyncio.run(scenario())
    assert states == []


def test_a_late_answer_of_an_actor_that_has_a_node_is_returned(
    groups: Callable[[Callable[[], str]], None],
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        checks: list[str] = []

        def state() -> str:
            checks.append("CREATED")
            if len(checks) == 2:
                loop.call_soon_threadsafe(answer.set_result, "here")
            return checks[0]

        groups(state)
        assert await while_placed(PLACED, answer, EVERY_S) == "here"
        assert len(checks) >= 2

    asyncio.run(scenario())
