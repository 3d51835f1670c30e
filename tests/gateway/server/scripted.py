"""A session that answers as a test says, in place of one that generates."""

import asyncio
from collections.abc import Awaitable, Callable

from rollart_flow.gateway.core.calls import AnswerEnd, ModelAnswer, ModelCall
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.types import Action

Script = Callable[[ModelCall], Awaitable[ModelAnswer]]


def said(text: str = "Hello.") -> ModelAnswer:
    """An answer of text."""
    return ModelAnswer(
        answer_id="AnSwEr001",
        action=Action(text),
        end=AnswerEnd.STOP,
        prompt_tokens=7,
        cached_tokens=0,
        answer_tokens=3,
    )


async def at_once(call: ModelCall) -> ModelAnswer:
    """Answer without delay."""
    return said()


def after(seconds: float) -> Script:
    """Answer after a time of the loop."""

    async def answer(call: ModelCall) -> ModelAnswer:
        await asyncio.sleep(seconds)
        return said()

    return answer


class ScriptedSession(CaptureSession):
    """A session whose answers are a function's; a cancelled call goes on, as in a real one."""

    def __init__(self, script: Script = at_once) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.calls: list[ModelCall] = []
        self.called: asyncio.Queue[ModelCall] = asyncio.Queue()
        self.tasks: list[asyncio.Task[ModelAnswer]] = []
        self.sealed = False
        self.not_read: list[bool] = []
        """For each answer that its client may not have read, whether it was sent."""
        self._last = ""
        self._finished = asyncio.Event()

    async def answer(self, call: ModelCall) -> ModelAnswer:
        self.calls.append(call)
        self.called.put_nowait(call)
        task = asyncio.create_task(self._answer(call))
        self.tasks.append(task)
        return await asyncio.shield(task)

    async def _answer(self, call: ModelCall) -> ModelAnswer:
        task = asyncio.ensure_future(self.script(call))
        finished = asyncio.ensure_future(self._finished.wait())
        await asyncio.wait((task, finished), return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return said(self._last)

    def unread(self, call: ModelCall, *, sent: bool) -> None:
        self.not_read.append(sent)

    async def count(self, call: ModelCall) -> int:
        return len(call.messages)

    def finish(self, text: str) -> None:
        self._last = text
        self._finished.set()

    async def seal(self) -> None:
        self.sealed = True
