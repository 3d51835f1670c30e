"""Typed methods as tools, and environments that have them, here and in a process of their own."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field, TypeAdapter

from rollart_flow.control.environment import AsyncEnvironment, may_converse
from rollart_flow.envs import Domain, Environment, ToolEnvironment, tool
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Info
from rollart_flow.envs.tools import described
from rollart_flow.errors import SettingsError
from rollart_flow.types import Action, Observation, Role, Split, Task, ToolCall
from rollart_flow.types.messages import messages_of, system, user


class Shop(ToolEnvironment):
    """Sells apples; the right answer is their price."""

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        return [system("You may look prices up."), user("What do two apples cost?")], {}

    @tool
    def price(self, fruit: str, count: Annotated[int, Field(ge=1)] = 1) -> dict[str, int]:
        """Look the price of some
        fruit up.

        Args:
            fruit: name of the fruit.
        """
        return {"cents": {"apple": 30}[fruit] * count}

    @tool
    def close_shop(self) -> str:
        """Close the shop."""
        return "closed"

    def answer(self, text: str) -> tuple[Observation, float, bool, bool, Info]:
        return "", float(text == "60"), True, False, {"success": text == "60"}


@dataclass(frozen=True)
class Shopping(Domain):
    name: ClassVar[str] = "shopping"
    environment: ClassVar[type[Environment]] = Shop
    isolated: bool = True

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        while True:
            yield Task("apples", self.name)


def call(name: str, call_id: str = "1", **arguments: object) -> Action:
    return Action("", tool_calls=(ToolCall(call_id, name, arguments),))


def test_a_tool_is_described_by_its_name_docstring_and_annotations() -> None:
    price, close = Shop().tools
    assert (price.name, price.description) == ("price", "Look the price of some fruit up.")
    assert price.parameters == {
        "type": "object",
        "properties": {
            "fruit": {"type": "string", "description": "name of the fruit."},
            "count": {"type": "integer", "default": 1, "minimum": 1},
        },
        "required": ["fruit"],
        "additionalProperties": False,
    }
    assert close.parameters["properties"] == {}


def test_a_tool_without_words_or_with_an_odd_type_is_refused_in_one_line() -> None:
    def silent() -> None: ...

    def odd(where: AsyncEnvironment) -> None:
        """Do something."""

    with pytest.raises(SettingsError, match=r"^tool 'silent' has no docstring"):
        described(silent)
    with pytest.raises(SettingsError, match=r"^tool 'odd' has no JSON Schema: "):
        described(odd)


@pytest.mark.parametrize("isolated", [False, True])
def test_its_tools_answer_and_what_they_raise_is_an_answer(isolated: bool) -> None:
    async def talk() -> None:
        environment = open_environment(Shopping(), isolated=isolated, timeout_s=60.0)
        shown, _ = await environment.reset(0, "{}")
        assert [message.role for message in messages_of(shown)] == [Role.SYSTEM, Role.USER]
        tools = environment.tools if may_converse(environment) else None
        assert [each.name for each in tools or ()] == ["price", "close_shop"]
        calls = call("price", fruit="apple", count=2).tool_calls
        more = call("price", "2", fruit="pear").tool_calls
        told, reward, terminated, _, _ = await environment.step(Action("", None, calls + more))
        assert (reward, terminated) == (0.0, False)
        assert isinstance(told, tuple)
        one, other = told
        assert (one.role, one.call_id, one.text) == (Role.TOOL, "1", '{"cents": 60}')
        assert (other.call_id, other.text) == ("2", "error: KeyError: 'pear'")
        _, reward, terminated, _, info = await environment.step(Action("60", "two at 30"))
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        await environment.close()

    asyncio.run(talk())


class Counter(ToolEnvironment):
    """Counts the calls of each environment by itself."""

    count = 0

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        return "Count.", {}

    @tool
    def more(self, by: int = 1) -> int:
        """Count on."""
        self.count += by
        return self.count

    @tool
    @staticmethod
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    def answer(self, text: str) -> tuple[Observation, float, bool, bool, Info]:
        return "", 0.0, True, False, {}


class Backwards(Counter):
    @tool
    def more(self, by: float = 1.0) -> int:
        """Count back."""
        self.count -= int(by)
        return self.count


def test_a_tool_is_read_once_and_belongs_to_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []

    class Counted(TypeAdapter[object]):  # type: ignore[misc]  # final, but it only counts
        def __init__(self, kind: Any, **given: Any) -> None:
            made.append(kind)
            super().__init__(kind, **given)

    monkeypatch.setattr("pydantic.TypeAdapter", Counted)
    answers = []
    for kind in (Counter, Backwards, Counter):
        environment = kind()
        assert [each.name for each in environment.tools] == ["more", "double"]
        calls = (*call("more", by=3).tool_calls, *call("double", number=4).tool_calls)
        for _ in range(2):
            told, *_ = environment.step(Action("", tool_calls=calls))
            answers.append([message.text for message in messages_of(told)])  # type: ignore[arg-type]
    assert answers == [["3", "8"], ["6", "8"], ["-3", "8"], ["-6", "8"], ["3", "8"], ["6", "8"]]
    assert len(made) == 2 * 2 + 3, "two descriptions of each class, and three functions"
