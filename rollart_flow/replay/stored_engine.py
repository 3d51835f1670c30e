"""An engine that answers the calls of a stored attempt with what was sampled then."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from rollart_flow.types import Chunk, FinishReason, GenerationRequest, Trajectory
from rollart_flow.types.exchanges import StoredExchange


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """Prompt and answer of a call, as the chain of its branch has them."""

    call: StoredExchange
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


def stored_generations(branches: Sequence[Trajectory]) -> dict[int, StoredGeneration]:
    """Return what was sampled for the calls of an attempt, by the number of the call."""
    rows = {row.trajectory_id: row for row in branches}
    found = {}
    for call in branches[0].exchanges or ():
        row, start, end = rows.get(call.trajectory_id or ""), call.answer_start, call.answer_end
        if row is None or start is None or end is None:
            continue
        reasons = {turn.end: turn.finish_reason for turn in row.turns}
        found[call.number] = StoredGeneration(
            call,
            call.prompt_ids or row.token_ids[:start],
            call.answer_ids or row.token_ids[start:end],
            row.logprobs[start:end],
            row.token_versions[start:end],
            FinishReason(reasons.get(end, FinishReason.ABORT)),
        )
    return found


class StoredEngine:
    """An inference worker that samples nothing; implements `control.protocols.Inference`.

    A request gets the stored answer to its call once that is released. Calls of a session have the
    numbers of the stored calls in `numbers`, by their own number.

    Args:
        generations: what was sampled, by the number of the stored call.
    """

    worker, hardware, stands_for = "stored", "stored", frozenset({"stored"})

    def __init__(self, generations: Mapping[int, StoredGeneration]) -> None:
        self._generations = generations
        self._released = {number: asyncio.Event() for number in generations}
        self.numbers: dict[int, int] = {}
        self.prompts: dict[int, Sequence[int]] = {}
        """Prompts that were asked for, by the number of the stored call."""

    def release(self, number: int) -> None:
        """Let the answer to a call end."""
        self._released[number].set()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        number = self.numbers[int(request.request_id.rpartition("/")[2])]
        self.prompts[number] = request.prompt_ids
        await self._released[number].wait()
        stored = self._generations[number]
        yield Chunk(
            request.request_id, 0, stored.token_ids, stored.logprobs, stored.versions,
            stored.finish_reason,
        )  # fmt: skip

    async def abort(self, request_id: str) -> None: ...
