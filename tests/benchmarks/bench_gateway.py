"""What a session of the gateway adds to a call over the engine's own time, by its history.

An agent's history grows by calls of a tool and their answers, in Qwen3's template with a byte-level
tokenizer; the engine answers at once. Each figure is the processor time of a call less that of the
engine's part of it. `bench_gateway_server.py` measures wire and server, too.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Message,
    Sampling,
    Task,
)
from rollart_flow.types.messages import system, tool_result, user
from tests.benchmarks.records import Record, record
from tests.models.chat.families import QWEN3, TOOLS

SIZES = (1_000, 8_000, 32_000, 128_000)
"""Tokens of history."""
CALLS = 15
"""Measured calls at each size."""
MOST_MS = 3.0
"""Goal at 8 thousand tokens."""
MOST_RATIO = 1.5
"""Goal for 128 thousand tokens beside one thousand; the history alone is 128 times as long."""
WRITTEN = QWEN3.ids(
    '<tool_call>\n{"name": "say", "arguments": {"text": "x"}}\n</tool_call><|im_end|>'
)
RESULT = "The tests of the module have passed. " * 4
"""Answer of the tool."""
GROWS = 40
"""Times `RESULT` that an answer of the tool has while the history grows."""


class InstantEngine:
    """Answers at once with a call of a tool, and notes its requests."""

    worker, hardware, stands_for = "engine-0", "CPU", frozenset({"CPU"})

    def __init__(self) -> None:
        self.last: GenerationRequest | None = None

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.last = request
        count = len(WRITTEN)
        stop = FinishReason.STOP
        yield Chunk(request.request_id, 0, WRITTEN, (-1.0,) * count, (0,) * count, stop)

    async def abort(self, request_id: str) -> None: ...


def run() -> list[Record]:
    """Measure milliseconds of a call, and microseconds of a new token."""
    made = []
    found = asyncio.run(_added())
    for size, (seconds, tokens) in found.items():
        what = f"gateway: a session at {size} tokens"
        goal = MOST_MS if size == 8_000 else None
        made.append(record(f"{what}, added to a call", seconds * 1e3, "ms", at_most=goal))
        made.append(record(f"{what}, for each new token", seconds / tokens * 1e6, "us"))
    for volatile, what in (((), "changes"), ((r"\d+",), "changes what is declared as volatile")):
        for size, (seconds, tokens) in asyncio.run(_added(volatile, changes=True)).items():
            named = f"gateway: a session at {size} tokens whose client {what}"
            made.append(record(f"{named}, added to a call", seconds * 1e3, "ms"))
            made.append(record(f"{named}, for each new token", seconds / tokens * 1e6, "us"))
    ratio = found[SIZES[-1]][0] / found[SIZES[0]][0]
    longest = f"gateway: a session at {SIZES[-1]} tokens beside {SIZES[0]}"
    return [*made, record(longest, ratio, "x", at_most=MOST_RATIO)]


def _session(engine: InstantEngine, volatile: tuple[str, ...]) -> tuple[CaptureSession, LLMProxy]:
    proxy = LLMProxy([engine], lambda event: None, vocabulary=QWEN3.codec.vocab_size)
    sampling = Sampling(max_tokens=500, stop_token_ids=QWEN3.codec.stop_token_ids)
    task = Task("talk", "talks")
    session = CaptureSession(
        Assignment("t", "g", task, 0, 7, sampling), QWEN3.codec, proxy,
        AttemptLimits(context_tokens=1 << 20, max_branches=10_000),
        CaptureLimits(max_calls=10_000, volatile=volatile), name="t@w.0",
    )  # fmt: skip
    return session, proxy


async def _added(
    volatile: tuple[str, ...] = (), *, changes: bool = False
) -> dict[int, tuple[float, int]]:
    """Return seconds and new tokens of a call at each size.

    Args:
        volatile: spans that are declared as volatile.
        changes: whether the first message is another one in each call.
    """
    engine = InstantEngine()
    session, proxy = _session(engine, volatile)
    messages: list[Message] = [system("Be brief."), user("Test it.")]

    async def call(times: int) -> None:
        """Make a call, and answer it for the next one."""
        if changes and times == 1:
            messages[0] = system(f"Be brief. Call {len(messages)}.")
        asked = ModelCall(wire="chat", messages=tuple(messages), tools=TOOLS)
        answer = await session.answer(asked)
        messages.append(answer.action.as_message())
        messages.append(tool_result(answer.action.tool_calls[0], RESULT * times))

    found = await _measured(call, session, engine, proxy)
    await session.seal()
    await proxy.close()
    return found


async def _measured(
    call: Callable[[int], Awaitable[None]],
    session: CaptureSession,
    engine: InstantEngine,
    proxy: LLMProxy,
) -> dict[int, tuple[float, int]]:
    """Return the median seconds of a call less those of its engine, and its new tokens."""
    found = {}
    for size in SIZES:
        while not session.exchanges or session.exchanges[-1].end < size:
            await call(GROWS if size > SIZES[0] else 1)
        await call(1)
        seconds = []
        for _ in range(CALLS):
            begun = time.process_time()
            await call(1)
            called = time.process_time()
            assert engine.last is not None
            await proxy.generate(engine.last)
            seconds.append(2 * called - begun - time.process_time())
        last = session.exchanges[-1]
        found[size] = median(seconds), last.end - last.start
    return found
