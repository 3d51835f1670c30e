"""Attempts whose environment shows messages and has tools."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from rollart_flow.control.environment import Codec, Retold
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.replay.spoken import recorded_turns, spoken_again
from rollart_flow.rows import trajectories_table, trajectory_from_row
from rollart_flow.types import (
    Action,
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Message,
    Observation,
    Outcome,
    Reason,
    Role,
    Sampling,
    Task,
    Tool,
    ToolCall,
    Trajectory,
)
from rollart_flow.types.messages import messages_of, system, tool_result, user
from rollart_flow.types.token_ids import TokenIds
from tests.dst.environments import LetterCodec, wall
from tests.dst.log import EventLog
from tests.dst.plans import STOP

ASSIGNMENT = Assignment(
    "g1-00", "g1", Task("sum", "sums"), 0, 7, Sampling(max_tokens=500, stop_token_ids=(STOP,))
)

ADD = Tool(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


class JsonConversation:
    """A template of JSON lines; an action is the JSON of an assistant's message."""

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        raise AssertionError("this codec does not branch")

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        if any(message.text == "refuse me" for message in messages_of(observation)):
            raise ValueError("two of the user in a row")
        lines = [json.dumps(message.as_json()) for message in messages_of(observation)]
        return tuple(map(ord, "".join(lines)))

    def act(self, token_ids: Sequence[int]) -> Action:
        text = "".join(chr(token) for token in token_ids if token != STOP)
        try:
            said = json.loads(text)
        except json.JSONDecodeError:
            return Action("", tool_calls=(ToolCall("0", "", {}, "not JSON", text),))
        calls = [ToolCall(str(n), *each) for n, each in enumerate(said.get("calls", []))]
        return Action(said.get("text", ""), said.get("thinking"), tuple(calls))

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        return 3


class JsonCodec(LetterCodec):
    branches_history = False

    def converse(self, tools: Sequence[Tool] = ()) -> JsonConversation:
        return JsonConversation()


class Speaker:
    """An engine that answers with one text after the other."""

    worker, hardware, stands_for = "engine-cpu-0", "cpu", frozenset({"cpu"})

    def __init__(self, *texts: object) -> None:
        self._texts = [each if isinstance(each, str) else json.dumps(each) for each in texts]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        ids = (*map(ord, self._texts.pop(0)), STOP)
        count = len(ids)
        yield Chunk(request.request_id, 0, ids, (-1.0,) * count, (3,) * count, FinishReason.STOP)

    async def abort(self, request_id: str) -> None: ...


class Adder:
    """Shows messages, has one tool, and ends at the first action without a call."""

    def __init__(self, *first: Message) -> None:
        self._first = first or (system("Add."), user("2 + 3?"))
        self.tools: Sequence[Tool] | None = (ADD,)
        self.actions: list[Action] = []

    async def reset(self, seed: int, task: str) -> tuple[Observation, Mapping[str, object]]:
        return self._first, {}

    async def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        if not action.tool_calls:
            return "", 1.0, True, False, {"success": action.text == "5"}
        sums = [
            tool_result(call, str(call.arguments["a"] + call.arguments["b"]))  # type: ignore[operator]
            for call in action.tool_calls
        ]
        return sums, 0.0, False, False, {}

    async def close(self) -> None: ...


async def played(environment: Adder, *said: object, codec: Codec | None = None) -> Trajectory:
    """The trajectory of an attempt, after a round trip through its row."""
    manager = EnvManager(
        ASSIGNMENT,
        lambda: environment,
        codec or JsonCodec(),
        LLMProxy([Speaker(*said)], EventLog()),
        AttemptLimits(max_turns=10, context_tokens=10_000),
        wall,
    )
    (trajectory,) = await manager.run()
    assert trajectory_from_row(trajectories_table([trajectory]).to_pylist()[0]) == trajectory
    return trajectory


async def test_calls_are_answered_by_id_and_all_is_stored() -> None:
    two = {"thinking": "sums", "calls": [["add", {"a": 2, "b": 3}], ["add", {"a": 1, "b": 1}]]}
    environment = Adder()
    trajectory = await played(environment, two, {"text": "5"})
    assert (trajectory.outcome, trajectory.solved) == (Outcome.COMPLETED, True)
    assert (trajectory.tool_calls, trajectory.tool_errors) == (2, 0)
    assert trajectory.rewritten_at == 3
    assert trajectory.messages is not None
    said = [(form["turn"], form["role"]) for form in json.loads(trajectory.messages)]
    assert said == [
        (0, "system"), (0, "user"), (0, "assistant"), (1, "tool"), (1, "tool"), (1, "assistant"),
    ]  # fmt: skip
    shown = recorded_turns(trajectory)[1].observation
    assert [(m.call_id, m.text) for m in messages_of(shown)] == [("0", "5"), ("1", "2")]
    assert recorded_turns(trajectory)[0].action == environment.actions[0]
    assert [turn.action for turn in trajectory.turns] == ["", "5"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (["multiply", {"a": 2, "b": 3}], "there is no tool 'multiply'; there are: add"),
        (["add", {"a": 2}], "'b' is a required property"),
        (["add", {"a": 2, "b": "3"}], "b: '3' is not of type 'integer'"),
    ],
)
async def test_a_call_that_cannot_be_made_is_answered_with_its_error(
    call: list[object], error: str
) -> None:
    environment = Adder()
    trajectory = await played(environment, {"calls": [call]}, {"text": "5"})
    assert (trajectory.outcome, trajectory.tool_calls, trajectory.tool_errors) == (
        Outcome.COMPLETED, 1, 1,
    )  # fmt: skip
    (told,) = messages_of(recorded_turns(trajectory)[1].observation)
    assert (told.role, told.call_id, told.text) == (Role.TOOL, "0", f"error: {error}")
    assert len(environment.actions) == 1, "it did not reach the environment"


async def test_a_tool_with_a_faulty_schema_ends_the_attempt_that_calls_it() -> None:
    environment = Adder()
    environment.tools = (Tool("add", "Add.", {"type": "numbers"}),)
    trajectory = await played(environment, {"calls": [["add", {}]]})
    assert (trajectory.outcome, trajectory.reason) == (Outcome.FAILED, Reason.ENVIRONMENT_ERROR)
    assert "reading the JSON Schema of tool 'add'" in (trajectory.error or "")
    assert "\n" not in (trajectory.error or "")
    assert any(trajectory.action_mask), "what was sampled is kept"


async def test_text_that_is_no_call_is_answered_too() -> None:
    trajectory = await played(Adder(), "{{", {"text": "5"})
    assert (trajectory.outcome, trajectory.tool_errors) == (Outcome.COMPLETED, 1)
    first = recorded_turns(trajectory)[0].action
    assert first is not None
    assert (first.tool_calls[0].error, first.tool_calls[0].text) == ("not JSON", "{{")


async def test_of_several_calls_those_that_can_be_made_are_made() -> None:
    three = {"calls": [["add", {"a": 2}], ["add", {"a": 2, "b": 3}], ["sub", {}]]}
    environment = Adder()
    trajectory = await played(environment, three, {"text": "5"})
    assert [call.call_id for call in environment.actions[0].tool_calls] == ["1"]
    told = messages_of(recorded_turns(trajectory)[1].observation)
    assert [message.call_id for message in told] == ["0", "1", "2"]
    assert [message.text.startswith("error: ") for message in told] == [True, False, True]
    assert (trajectory.tool_calls, trajectory.tool_errors) == (3, 2)


async def test_its_tokens_say_again_what_was_recorded() -> None:
    trajectory = await played(Adder(), {"calls": [["add", {"a": "x"}]]}, {"text": "5"})
    spoken = spoken_again(trajectory, JsonCodec())
    for turn, again, recorded in zip(
        trajectory.turns, spoken, recorded_turns(trajectory), strict=True
    ):
        assert again.action == recorded.action
        ids = trajectory.token_ids[turn.start : turn.start + len(again.observation_ids)]
        assert ids == again.observation_ids


async def test_messages_that_a_template_refuses_are_an_outcome() -> None:
    trajectory = await played(Adder(user("refuse me")))
    assert (trajectory.outcome, trajectory.reason) == (Outcome.FAILED, Reason.ENVIRONMENT_ERROR)
    assert trajectory.error is not None
    assert "two of the user in a row" in trajectory.error


async def test_a_codec_of_text_cannot_convert_messages() -> None:
    trajectory = await played(Adder(), codec=LetterCodec())
    assert trajectory.reason is Reason.ENVIRONMENT_ERROR
    assert trajectory.error is not None
    assert "this codec converts text only" in trajectory.error


async def test_messages_without_tools_get_text_as_their_action() -> None:
    environment = Adder()
    environment.tools = None
    actions: list[object] = []

    async def step(action: object) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        actions.append(action)
        return "", 0.0, True, False, {}

    environment.step = step  # type: ignore[method-assign]
    trajectory = await played(environment, {"text": "hello"})
    assert actions == ["hello"]
    assert (trajectory.tools, trajectory.tool_calls) == (None, 0)
    assert trajectory.messages is not None
