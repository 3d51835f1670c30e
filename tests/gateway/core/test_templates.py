"""Sessions with chat templates of published models."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.settings import BRANCH, ChatSettings
from rollart_flow.types import (
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Message,
    Outcome,
    Role,
    Sampling,
    ToolCall,
    Trajectory,
)
from rollart_flow.types.messages import tool_result, user
from tests.gateway.core.rig import ASSIGNMENT, NOW, other_ids
from tests.models.chat.families import (
    DEEPSEEK_TOOLS,
    GLM,
    GPT_OSS,
    LLAMA,
    MISTRAL,
    QWEN3,
    TOOLS,
    Family,
)


class Writer:
    """An engine that generates one list of tokens after the other."""

    worker, hardware, stands_for = "engine-cpu-0", "cpu", frozenset({"cpu"})

    def __init__(self, *actions: Sequence[int]) -> None:
        self._actions = [tuple(action) for action in actions]
        self.prompts: list[Sequence[int]] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.prompts.append(request.prompt_ids)
        ids = self._actions.pop(0)
        count = len(ids)
        stop = FinishReason.STOP
        yield Chunk(request.request_id, 0, ids, (-1.0,) * count, (3,) * count, stop)

    async def abort(self, request_id: str) -> None: ...


class Talk:
    """A session with a codec, and a client that sends everything back without ids."""

    def __init__(self, codec: Any, *actions: Sequence[int]) -> None:
        self.engine = Writer(*actions)
        self.proxy = LLMProxy([self.engine], lambda event: None)
        sampling = Sampling(max_tokens=500, stop_token_ids=codec.stop_token_ids)
        self.assignment = replace(ASSIGNMENT, sampling=sampling)
        self.session = CaptureSession(
            self.assignment, codec, self.proxy, AttemptLimits(context_tokens=10_000),
            CaptureLimits(), name="g1-00@w.0",
        )  # fmt: skip
        self.messages: list[Message] = [user("What is 1 + 2?")]

    async def turn(self) -> Message:
        call = ModelCall(wire="chat", messages=tuple(self.messages), tools=TOOLS)
        answer = await self.session.answer(call)
        said = answer.action.as_message()
        self.messages.append(replace(other_ids(said), thinking=None))
        return self.messages[-1]

    async def rows(self) -> list[Trajectory]:
        await self.session.seal()
        await self.proxy.close()
        return [
            recorder.trajectory(
                self.assignment, AttemptResult(Outcome.COMPLETED), created_at=NOW,
                finished_at=NOW, reset_s=0.0, env_version="", solved=None, columns=columns,
            )
            for recorder, columns in self.session.rows("g1-00")
        ]  # fmt: skip


FAMILIES = [QWEN3, LLAMA, GLM, GPT_OSS, MISTRAL, DEEPSEEK_TOOLS]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_conversation_of_a_client_without_ids_is_one_row(family: Family) -> None:
    asked = [user("What is 1 + 2?")]
    called = Message(
        Role.ASSISTANT, "", tool_calls=(ToolCall("call00000", "add", {"a": 1, "b": 2}),)
    )
    spoken = Message(Role.ASSISTANT, "It is 3.")
    actions = [family.generated(asked, each, TOOLS) for each in (called, spoken, spoken)]
    talk = Talk(family.codec, *actions)
    (call,) = (await talk.turn()).tool_calls
    assert dict(call.arguments) == {"a": 1, "b": 2}
    talk.messages.append(tool_result(call, "3"))
    assert (await talk.turn()).text.endswith("It is 3.")
    talk.messages.append(user("Sure?"))
    await talk.turn()
    assert [each.evidence for each in talk.session.exchanges] == ["root", *["structure"] * 2]
    (row,) = await talk.rows()
    one, two, three = talk.engine.prompts
    for prompt in (one, two, three):
        assert row.token_ids[: len(prompt)] == prompt
    assert sum(row.action_mask) == sum(map(len, actions))


async def test_a_template_that_drops_thinking_begins_branches_if_the_policy_says_so() -> None:
    settings = ChatSettings(history=BRANCH).as_text()
    codec = TextCodec({**QWEN3.files, "chat.json": settings})
    thought = QWEN3.ids("<think>\nHm.\n</think>\n\nSure<|im_end|>")
    talk = Talk(codec, thought, thought, thought)
    for _ in range(3):
        await talk.turn()
        talk.messages.append(user("Sure?"))
    assert [each.parent for each in talk.session.exchanges] == [None, 0, 1]
    rows = await talk.rows()
    assert [row.parent for row in rows] == [None, "g1-00", "g1-00.1"]
    for row, prompt in zip(rows, talk.engine.prompts, strict=True):
        assert row.token_ids[: len(prompt)] == prompt
        assert sum(row.action_mask) == len(thought)
    assert QWEN3.codec.decode(talk.engine.prompts[2]).count("Hm.") == 0
