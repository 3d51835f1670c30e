"""A session with a real tokenizer and a scripted engine, and a client that talks to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.errors import RequestRefusedError
from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    Event,
    FinishReason,
    GenerationRequest,
    Message,
    Outcome,
    Sampling,
    Task,
    Tool,
    ToolCall,
    Trajectory,
)
from rollart_flow.types.messages import system, tool_result, user

CODEC = TextCodec(tiny_tokenizer_files((), 1 << 18))
STOP = CODEC.stop_token_ids[0]
ADD = Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {}, "b": {}}})
SAY = Tool("say", "Say a text.", {"type": "object", "properties": {"text": {}}})
FIRST = (system("Be brief."), user("task?"))
ASSIGNMENT = Assignment(
    "g1-00", "g1", Task("sum", "sums"), 0, 7, Sampling(max_tokens=400, stop_token_ids=(STOP,))
)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def called(*calls: tuple[str, Mapping[str, object]], text: str = "") -> str:
    """What a policy writes that calls tools."""
    forms = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return text + "".join(f"<tool_call>{form}</tool_call>" for form in forms)


ADDED = called(("add", {"a": 1, "b": 2}))


@dataclass
class Script:
    """What the engine does for one request."""

    says: str = "ok"
    chunks: int = 1
    """Number of chunks of the answer."""
    waits: asyncio.Event | None = None
    """The last chunk waits for this event."""
    fails_after: int | None = None
    """Tokens after which the engine fails; None: it does not."""
    version: int = 3


class ScriptedEngine:
    """Does one thing after the other, the last one again and again; no logprob comes twice."""

    worker, hardware, stands_for = "engine-cpu-0", "cpu", frozenset({"cpu"})

    def __init__(self, *scripts: Script | str) -> None:
        self._scripts = [each if isinstance(each, Script) else Script(each) for each in scripts]
        self.sampled: dict[float, int] = {}
        """Sampled tokens by their logprobs."""
        self.requests: list[GenerationRequest] = []
        self._aborted: dict[str, asyncio.Event] = {}

    @property
    def prompts(self) -> list[Sequence[int]]:
        return [request.prompt_ids for request in self.requests]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        ids = (*CODEC.encode(script.says), STOP)[: request.sampling.max_tokens]
        if script.fails_after is not None:
            ids = ids[: script.fails_after]
        size = -(-len(ids) // script.chunks) if ids else 1
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            last = start + size >= len(ids)
            if last and script.waits is not None:
                await script.waits.wait()
            logprobs = tuple(-1.0 - len(self.sampled) - n for n in range(len(part)))
            self.sampled |= dict(zip(logprobs, part, strict=True))
            reason = FinishReason.STOP if part[-1] == STOP else FinishReason.LENGTH
            done = reason if last and script.fails_after is None else None
            versions = (script.version,) * len(part)
            yield Chunk(request.request_id, start, part, logprobs, versions, done)
        if script.fails_after is not None:
            raise RequestRefusedError("the engine broke")  # its worker goes on

    async def abort(self, request_id: str) -> None: ...


@dataclass
class Rig:
    """A session and its engine."""

    engine: ScriptedEngine
    capture: CaptureLimits = field(default_factory=CaptureLimits)
    codec: Any = CODEC
    limits: AttemptLimits = field(default_factory=lambda: AttemptLimits(context_tokens=4000))
    sampling: Mapping[str, Any] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.assignment = replace(
            ASSIGNMENT, sampling=replace(ASSIGNMENT.sampling, **self.sampling)
        )
        self.events: list[Event] = []
        self.proxy = LLMProxy([self.engine], self.events.append, vocabulary=CODEC.vocab_size)
        self.session = CaptureSession(
            self.assignment,
            self.codec,
            self.proxy,
            self.limits,
            self.capture,
            name="g1-00@w.0",
            on_first=self.starts.append,
        )

    @property
    def exchanges(self) -> list[Exchange]:
        return self.session.exchanges

    async def trajectories(self) -> list[Trajectory]:
        """Seal the session; its rows, after a check of what holds for all sessions."""
        await self.session.seal()
        await self.proxy.close()
        ending = AttemptResult(Outcome.COMPLETED)
        rows = [
            recorder.trajectory(
                self.assignment, ending, created_at=NOW, finished_at=NOW, reset_s=0.0,
                env_version="", solved=None, columns=columns,
            )
            for recorder, columns in self.session.rows("g1-00")
        ]  # fmt: skip
        check(rows, self.engine.sampled)
        return rows


def check(rows: Sequence[Trajectory], sampled: Mapping[float, int]) -> None:
    """Every sampled token is in one row, as an action or with a reason; nothing else is trained."""
    seen: dict[float, int] = {}
    for row in rows:
        sizes = {len(row.token_ids), len(row.action_mask), len(row.logprobs)}
        assert len(sizes | {len(row.token_versions)}) == 1
        per_token = zip(
            row.token_ids, row.action_mask, row.logprobs, row.token_versions, strict=True
        )
        for token, trained, logprob, version in per_token:
            if version < 0:
                assert not trained
                assert logprob == 0.0
                continue
            assert sampled[logprob] == token
            assert logprob not in seen, "a sampled token is in two rows"
            seen[logprob] = token
        acts = [mask for mask, version in zip(row.action_mask, row.token_versions, strict=True)
                if version >= 0]  # fmt: skip
        assert all(acts) or (not any(acts) and row.reason is not None)
        assert (row.policy_version_start is None) == (not any(row.action_mask))
    assert seen == dict(sampled)


class Client:
    """A client that keeps the whole conversation and sends it with every call.

    Args:
        ask: answers a call, such as `CaptureSession.answer`.
        first: first messages.
        tools: tools that it offers.
        echo: how it sends an answer back; as it came, by default.
    """

    def __init__(
        self,
        ask: Callable[[ModelCall], Any],
        first: Sequence[Message] = FIRST,
        tools: Sequence[Tool] = (ADD,),
        echo: Callable[[ModelAnswer], Message] = lambda answer: answer.action.as_message(),
        *,
        echoes: bool = False,
    ) -> None:
        self._ask = ask
        self.messages = [*first]
        self.tools = tuple(tools)
        self._echo = echo
        self._echoes = echoes
        self._ids: dict[int, tuple[str, ...]] = {}

    def call(self, **fields: Any) -> ModelCall:
        """The call that it would make now."""
        made = ModelCall(wire="chat", messages=tuple(self.messages), tools=self.tools)
        return replace(made, echoes=dict(self._ids), **fields)

    async def turn(self, **fields: Any) -> ModelAnswer:
        """Make a call, and keep its answer."""
        answer: ModelAnswer = await self._ask(self.call(**fields))
        if self._echoes:
            self._ids[len(self.messages)] = (answer.answer_id,)
        self.messages.append(self._echo(answer))
        return answer

    def results(self, *texts: str) -> None:
        """Add the answers of tools to the calls of the last answer."""
        calls = self.messages[-1].tool_calls
        self.messages += [tool_result(call, text) for call, text in zip(calls, texts, strict=True)]

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append(user(text))


def other_ids(message: Message) -> Message:
    """A message whose calls have ids of the client's own."""
    calls = [replace(call, call_id=f"own-{n}") for n, call in enumerate(message.tool_calls)]
    return replace(message, tool_calls=tuple(calls))


def call_of(name: str, **arguments: object) -> ToolCall:
    """A call that no policy wrote."""
    return ToolCall("call_of_the_client", name, arguments)
