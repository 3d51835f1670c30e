"""Scripted policies: one whose weights are updated while it answers, one that has a sub-agent."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.protocols import PullStats
from rollart_flow.types import Chunk, GenerationRequest
from tests.gateway.core.rig import CODEC, Script, ScriptedEngine
from tests.harness.clients import TASK

COUNTED = "I counted one file."
"""Answer of a sub-agent."""


class UpdatedEngine(ScriptedEngine):
    """Implements `control.protocols.EngineCommands`: suspended, it samples no token.

    A request in flight keeps its tokens, and what follows is of the version after the update.
    """

    def __init__(self, *scripts: Script | str, version: int = 3) -> None:
        super().__init__(*scripts)
        self.version = version
        self.chunks = 0
        """Chunks that were sampled."""
        self._suspended = False
        self._changed = Signal()

    @property
    def name(self) -> str:
        return self.worker

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(request):
            while self._suspended:
                await self._changed.wait()
            self.chunks += 1
            yield replace(chunk, versions=(self.version,) * len(chunk.token_ids))

    async def suspend(self) -> None:
        self._suspended = True

    def prefetch(self, version: int) -> None: ...

    async def update(self, version: int) -> PullStats:
        assert self._suspended, "weights change only while no token is sampled"
        self.version = version
        return PullStats()

    async def serve(self, version: int) -> bool:
        self.version, self._suspended = version, False
        self._changed.notify()
        return False

    async def release(self) -> int:
        return 0

    async def leave(self) -> int:
        return 0

    async def ping(self) -> None: ...

    def restart(self) -> None: ...


class DelegatingEngine(ScriptedEngine):
    """Answers a sub-agent, whose conversation has nothing of the task, whenever it asks; `AGENT` in
    the answers to its parent stands for its id."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        shown = CODEC.decode(request.prompt_ids)
        if TASK not in shown:
            self._scripts.insert(0, Script(COUNTED))
        elif ids := re.findall(r"agent_id\W+([0-9a-f-]{36})", shown):
            first = self._scripts[0]
            self._scripts[0] = replace(first, says=first.says.replace("AGENT", ids[-1]))
        async for chunk in super().generate(request):
            yield chunk
