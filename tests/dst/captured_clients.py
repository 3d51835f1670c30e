"""Clients of the gateway's fuzzer: they change their history, repeat, leave and start again."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.types import Message, Role, Tool
from rollart_flow.types.messages import system, tool_result, user
from tests.dst.log import Log
from tests.gateway.core.rig import ADD, SAY

_SUMMARY = 40
"""Fewest characters of an answer that a client takes for a summary."""


@dataclass
class Answered:
    """An answer, the call that it is to, and when a request for it began."""

    call: ModelCall
    answer: ModelAnswer
    client: str


@dataclass
class Shared:
    """What all clients of a session have in common."""

    session: CaptureSession
    chance: random.Random
    log: Log
    answered: list[Answered] = field(default_factory=list)
    lost: list[tuple[ModelAnswer, ModelAnswer]] = field(default_factory=list)
    """Answers that did not arrive, each with the answer to the same request sent again."""
    numbers: Any = field(default_factory=count)
    """Numbers of texts: no two messages of clients are alike."""
    digests: Any = field(default_factory=count)

    def text(self) -> str:
        """A text that no other message has."""
        return f"u{next(self.numbers)}."


class ChanceClient:
    """One conversation of a client, which does by chance what clients do."""

    def __init__(self, shared: Shared, name: str, tools: tuple[Tool, ...] = (ADD,)) -> None:
        self._shared = shared
        self._chance = shared.chance
        self.name = name
        self.tools = tools
        self.messages: list[Message] = []
        self.echoes: dict[int, tuple[str, ...]] = {}
        self.styles = self._chance.choices(
            (_as_it_came, _without_ids, _flattened, _trimmed), weights=(6, 2, 1, 1), k=1
        )
        self._sends_ids = self._chance.random() < 0.3
        self.begin()

    def begin(self, *texts: str) -> None:
        """Begin a conversation."""
        chance, text = self._chance, self._shared.text
        opening = [system(f"Be brief. {chance.choice(_COUNTERS)}")] if chance.random() < 0.8 else []
        self.messages = [*opening, user(" ".join([*texts, text()]))]
        self.echoes = {}
        if chance.random() < 0.1:
            self.messages += [Message(Role.ASSISTANT, "a shown answer"), user(text())]

    async def run(self, turns: int) -> None:
        """Make some calls, until the session ends."""
        for _ in range(turns):
            await asyncio.sleep(self._chance.choice((0, 0.01, 0.3)))
            if self._chance.random() < 0.35:
                self._edit()
            try:
                answer = await self._ask()
            except CallRefusedError as refused:
                if refused.refusal is Refusal.SEALED:
                    return
                self.begin("This goes on.")
                continue
            if answer is None or self._chance.random() < 0.05:
                continue  # the same conversation is asked for again
            if answer.control:
                return
            self._take(answer)

    async def _ask(self) -> ModelAnswer | None:
        """Ask for an answer in one of the ways of clients; None if nobody waited for it."""
        call = self._call()
        way = self._chance.choices(_WAYS, weights=(10, 2, 2, 2, 1, 1, 1, 1, 1), k=1)[0]
        self._shared.log.write("ask", self.name, way, f"{len(call.messages)} messages")
        if way == "twice at once":
            answers = await _gather(self._send(call), self._send(call))
            return answers[self._chance.randrange(2)]
        if way == "two samples":
            other = replace(call, digest=f"d{next(self._shared.digests)}")
            return (await _gather(self._send(call), self._send(other)))[0]
        if way == "two turns":
            other = replace(
                call,
                digest=f"d{next(self._shared.digests)}",
                messages=(*call.messages, user(self._shared.text())),
            )
            return (await _gather(self._send(call), self._send(other)))[0]
        if way in ("leave", "leave and retry"):
            task = asyncio.ensure_future(self._send(call))
            await asyncio.sleep(self._chance.choice((0, 0.01, 0.1, 1)))
            task.cancel()
            await asyncio.wait([task])
            if way == "leave":
                if not task.cancelled():
                    task.exception()
                return None
            call = replace(call, retry=self._chance.random() < 0.7)
        answer = await self._insist(call)
        if way in ("lost", "doubted", "ends connections") and not answer.control:
            self._shared.session.unread(call, sent=way != "lost")
            if way != "ends connections":
                return await self._again(call, answer, lost=way == "lost")
        return answer

    async def _again(self, call: ModelCall, answer: ModelAnswer, *, lost: bool) -> ModelAnswer:
        """Send a request again, unmarked, whose answer did not arrive or may not have."""
        if lost:
            assert self._shared.answered.pop().answer is answer
        again = await self._insist(call)
        if lost and call.digest and not again.control:
            self._shared.lost.append((answer, again))
        return again

    async def _insist(self, call: ModelCall) -> ModelAnswer:
        """Send a call, and again as a retry while the engine fails."""
        for _ in range(3):
            try:
                return await self._send(call)
            except CallRefusedError as refused:
                if refused.refusal not in (Refusal.ENGINE, Refusal.BUSY):
                    raise
                await asyncio.sleep(0.1)
                call = replace(call, retry=True)
        return await self._send(call)

    async def _send(self, call: ModelCall) -> ModelAnswer:
        answer = await self._shared.session.answer(call)
        self._shared.answered.append(Answered(call, answer, self.name))
        self._shared.log.write("answer", self.name, answer.end, repr(answer.action.text[:40]))
        return answer

    def _call(self) -> ModelCall:
        stop = {"stop": ["STOP"]} if self._chance.random() < 0.1 else {}
        return ModelCall(
            wire="chat",
            messages=tuple(self.messages),
            tools=self.tools,
            echoes=dict(self.echoes),
            digest=f"d{next(self._shared.digests)}" if self._chance.random() < 0.9 else "",
            retry=self._chance.random() < 0.05,
            max_tokens=self._chance.choice((None, None, None, 20)),
            sampling=stop,
        )

    def _take(self, answer: ModelAnswer) -> None:
        """Add an answer to the conversation, and what the client says to it."""
        said = answer.action.text
        if len(said) >= _SUMMARY and self._chance.random() < 0.5:
            self.begin(said)
            return
        if self._sends_ids:
            self.echoes[len(self.messages)] = answer.answer_id, answer.signature
        style: Callable[[Message], Message] = self._chance.choice(self.styles)
        message = style(answer.action.as_message())
        self.messages.append(message)
        results = [tool_result(call, self._shared.text()) for call in message.tool_calls]
        if self._chance.random() < 0.1:
            results.reverse()
        self.messages += results
        if not results or self._chance.random() < 0.1:
            self.messages.append(user(self._shared.text()))

    def _edit(self) -> None:
        """Change the conversation as clients do."""
        chance, messages = self._chance, self.messages
        place = chance.randrange(len(messages))
        old = messages[place]
        match chance.choice(("text", "back", "drop", "system", "tools", "foreign", "counter")):
            case "text" if old.role is not Role.ASSISTANT:
                messages[place] = replace(old, text=self._shared.text())
            case "text":
                messages[place] = Message(Role.ASSISTANT, f"rewritten {place}")
                self.echoes.pop(place, None)
                self._only_results_of_calls()
            case "back":
                starts = [n for n, each in enumerate(messages) if each.role is Role.USER]
                self._cut(chance.choice(starts) + 1)
            case "drop":
                users = [n for n, each in enumerate(messages) if each.role is Role.USER]
                kept = chance.choice(users)
                head = messages[:1] if messages[0].role is Role.SYSTEM and kept else []
                moved = len(head) - kept
                self.messages = [*head, *messages[kept:]]
                self.echoes = {n + moved: ids for n, ids in self.echoes.items() if n >= kept}
            case "system" if messages[0].role is Role.SYSTEM:
                messages[0] = system(f"Be {self._shared.text()}")
            case "counter" if messages[0].role is Role.SYSTEM and "Be brief" in messages[0].text:
                messages[0] = system(f"Be brief. {chance.choice(_COUNTERS)}")
            case "tools":
                self.tools = chance.choice(((), (ADD,), (ADD, SAY)))
            case "foreign" if messages[-1].role is Role.USER:
                messages.append(Message(Role.ASSISTANT, "the client's own"))
                messages.append(user(self._shared.text()))

    def _cut(self, length: int) -> None:
        self.messages = self.messages[:length]
        self.echoes = {n: ids for n, ids in self.echoes.items() if n < length}

    def _only_results_of_calls(self) -> None:
        """Make results of calls that are gone messages of the user."""
        known = {call.call_id for each in self.messages for call in each.tool_calls}
        for n, each in enumerate(self.messages):
            if each.role is Role.TOOL and each.call_id not in known:
                self.messages[n] = user(each.text)


_WAYS = (
    *("once", "twice at once", "leave and retry", "leave", "two samples", "two turns"),
    *("lost", "doubted", "ends connections"),
)
_COUNTERS = ("", "<total_tokens>9 tokens left", "<total_tokens>10,000 tokens left")


async def _gather(*sends: Any) -> list[ModelAnswer]:
    """The answers to several requests, once all of them have ended."""
    found = await asyncio.gather(*sends, return_exceptions=True)
    answers = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        answers.append(each)
    return answers


def _as_it_came(message: Message) -> Message:
    return message


def _without_ids(message: Message) -> Message:
    calls = [replace(call, call_id=f"own{n:06d}") for n, call in enumerate(message.tool_calls)]
    return replace(message, tool_calls=tuple(calls), thinking=None)


def _flattened(message: Message) -> Message:
    calls = [call.as_json() for call in message.tool_calls]
    return Message(Role.ASSISTANT, f"{message.text}\n{calls}" if calls else message.text)


def _trimmed(message: Message) -> Message:
    return replace(message, text=message.text.strip(), thinking=message.thinking and "changed")
