"""Replay of the calls of captured agents: a session gets them again, without an engine.

A new session of the gateway gets the stored calls in their order, and its engine is `StoredEngine`.
So each prompt is rendered again, and each answer is parsed again, by what is installed now. The
comparison goes call by call: the tokens of the prompt, then what the answer says to its client;
ids are not compared. The first difference ends the replay of an attempt, since what follows a
difference differs too.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollart_flow.control.environment import ChatCodec
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.replay.stored_calls import StoredClient
from rollart_flow.replay.stored_engine import (
    StoredEngine,
    StoredGeneration,
    stored_generations,
)
from rollart_flow.types import Assignment, AttemptLimits, FinishReason, Sampling, Task, Trajectory

_UNBOUNDED = 1 << 30
_SHOWN = 60
"""Maximum number of characters of a text that a message quotes."""

Spell = Callable[[Sequence[int]], str]
"""Text of some tokens."""


@dataclass(frozen=True, slots=True)
class CallDifference:
    """The first difference of an attempt."""

    call: int
    """Number of the call."""
    what: str
    """prompt, answer or call."""
    said: str
    """The recorded and the replayed value, in one line."""

    def __str__(self) -> str:
        return f"call {self.call}: {self.what}: {self.said}"


@dataclass(slots=True)
class SessionReplay:
    """Result of replaying the calls of one attempt."""

    trajectory_id: str
    calls: int
    """Calls that sampled something, all of which are replayed unless there is a difference."""
    replayed: int = 0
    difference: CallDifference | None = None


@dataclass(slots=True)
class CallUnderReplay:
    """A call that is under way in the new session."""

    stored: StoredGeneration
    task: "asyncio.Task[ModelAnswer]"


@dataclass(slots=True)
class SessionAgain:
    """A new session that gets the stored calls of an attempt.

    Args:
        branches: rows of the attempt, the first of which has its calls.
        codec: codec that renders prompts and parses answers.
        before: told the number of a call before its answer is parsed.
    """

    branches: Sequence[Trajectory]
    codec: ChatCodec
    before: Callable[[int], None] = field(default=lambda number: None)

    async def run(self) -> SessionReplay:
        """Replay the calls up to the first difference."""
        first, generations = self.branches[0], stored_generations(self.branches)
        images = {image.image_id: image for row in self.branches for image in row.images or ()}
        engine, client = StoredEngine(generations), StoredClient(images)
        proxy = LLMProxy([engine], lambda event: None)
        session = _session(first, self.codec, proxy)
        found = SessionReplay(first.trajectory_id, len(generations))
        under_way: list[CallUnderReplay] = []
        try:
            for stored in generations.values():
                await self._end(engine, client, session, found, under_way, before=stored)
                if found.difference is not None:
                    break
                try:
                    call = client.call(stored.call)
                except (KeyError, ValueError, TypeError) as error:
                    said = f"the stored request cannot be read: {error!r}"
                    found.difference = CallDifference(stored.call.number, "call", said)
                    break
                engine.numbers[len(session.exchanges)] = stored.call.number
                task = asyncio.ensure_future(session.answer(call))
                under_way.append(CallUnderReplay(stored, task))
                await asyncio.sleep(0)  # the call is placed before the next one
            await self._end(engine, client, session, found, under_way, before=None)
        finally:
            session.finish("")
            for each in under_way:
                engine.release(each.stored.call.number)
                await asyncio.gather(each.task, return_exceptions=True)
            await session.seal()
            await proxy.close()
        return found

    async def _end(
        self,
        engine: StoredEngine,
        client: StoredClient,
        session: CaptureSession,
        found: SessionReplay,
        under_way: list[CallUnderReplay],
        *,
        before: StoredGeneration | None,
    ) -> None:
        """End the calls that had ended before a call arrived, or all of them, in their order."""
        limit = None if before is None else before.call.arrived_at
        due = [each for each in under_way if limit is None or each.stored.call.ended_at <= limit]
        for each in sorted(
            due, key=lambda call: (call.stored.call.ended_at, call.stored.call.number)
        ):
            if found.difference is not None:
                return
            stored, number = each.stored, each.stored.call.number
            self.before(number)
            engine.release(number)
            answer, refused = await _outcome(each.task)
            if answer is not None:
                client.answered(stored.call, answer)
            under_way.remove(each)
            found.replayed += 1
            found.difference = self._compared(engine, stored, answer, refused)

    def _compared(
        self,
        engine: StoredEngine,
        stored: StoredGeneration,
        answer: ModelAnswer | None,
        refused: str,
    ) -> CallDifference | None:
        number = stored.call.number
        prompt = engine.prompts.get(number)
        if prompt is None:
            return CallDifference(number, "call", f"refused now: {refused}")
        if prompt != stored.prompt_ids:
            return CallDifference(
                number, "prompt", token_difference(stored.prompt_ids, prompt, self.codec.decode)
            )
        if stored.finish_reason is FinishReason.ABORT or stored.call.answer is None:
            return None  # its client got no answer of the policy
        recorded = said_in_json(stored.call.answer)
        now = {} if answer is None else said_now(answer)
        return (
            None
            if recorded == now
            else CallDifference(number, "answer", value_difference(recorded, now))
        )


async def _outcome(task: "asyncio.Task[ModelAnswer]") -> tuple[ModelAnswer | None, str]:
    """Return (answer, "") of a call, or (None, why it was refused)."""
    try:
        return await task, ""
    except CallRefusedError as error:
        return None, str(error)


def _session(first: Trajectory, codec: ChatCodec, proxy: LLMProxy) -> CaptureSession:
    """Return a session with the stored attempt's assignment, and no limits."""
    sampling = Sampling(max_tokens=_UNBOUNDED, temperature=first.sampling.temperature)
    task = Task(first.task_id, first.domain, first.task)
    assignment = Assignment(
        first.trajectory_id, first.group_id, task, first.attempt, first.env_seed, sampling
    )
    limits = AttemptLimits(context_tokens=_UNBOUNDED)
    capture = CaptureLimits(max_calls=_UNBOUNDED, max_tokens=_UNBOUNDED, max_under_way=_UNBOUNDED)
    return CaptureSession(assignment, codec, proxy, limits, capture, name="replay")


def said_now(answer: ModelAnswer) -> dict[str, Any]:
    """Return what an answer says to its client, without ids."""
    form = answer.action.as_message().as_json()
    return _without_ids({"end": str(answer.end), **form})


def said_in_json(answer: str) -> dict[str, Any]:
    """Return what a stored answer says to its client, without ids."""
    form = json.loads(answer)
    return _without_ids({"end": form["end"], **form["message"]})


def _without_ids(form: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": None} for call in form.get("tool_calls", ())]
    return {**form, "tool_calls": calls}


def token_difference(recorded: Sequence[int], now: Sequence[int], spell: Spell) -> str:
    """Say where two prompts differ first."""
    pairs = enumerate(zip(recorded, now, strict=False))
    at = next((at for at, (old, new) in pairs if old != new), min(len(recorded), len(now)))
    old, new = (spell(ids[at : at + _SHOWN]) for ids in (recorded, now))
    return f"token {at} of {len(recorded)}: recorded {shortened(old)}, now {shortened(new)}"


def value_difference(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Say which part of two answers differs first."""
    names = [*recorded, *(name for name in now if name not in recorded)]
    name = next(name for name in names if recorded.get(name) != now.get(name))
    old, new = (json.dumps(each.get(name), ensure_ascii=False) for each in (recorded, now))
    return f"{name}: recorded {shortened(old)}, now {shortened(new)}"


def shortened(text: str) -> str:
    """Return a text as a message quotes it."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return repr(shown)
