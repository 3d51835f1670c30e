"""Prefill and decode on separate workers behind one interface (ROLLART section 6.3).

Prefixes lie in a store in host memory (Mooncake), from which a prefill worker loads them layer by
layer beside its arithmetic; KV caches of new tokens go to the decode worker over the network. The
invariant: every token is sampled by a decode worker that has the KV cache of all tokens before it;
a trajectory keeps its pair of workers.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.types import Chunk, GenerationRequest

_REMEMBERED = 65_536
"""Trajectories whose pair is remembered."""


class DisaggregatedEngine:
    """The protocol `Inference` over prefill workers and decode workers.

    Args:
        prefill: workers that compute prompts.
        decode: workers that sample tokens.
        link_gb_s: bandwidth from prefill to decode, per worker [GB/s].
        kv_bytes: KV cache of one token.
    """

    def __init__(
        self,
        prefill: Sequence[SimulatedEngine],
        decode: Sequence[SimulatedEngine],
        link_gb_s: float,
        kv_bytes: float,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._token_s = kv_bytes / (link_gb_s * 1e9)
        self._pairs: BoundedDict[str, tuple[SimulatedEngine, SimulatedEngine, int]] = BoundedDict(
            _REMEMBERED
        )

    @property
    def worker(self) -> str:
        """Name of the worker."""
        return f"{len(self._prefill)}P{len(self._decode)}D"

    @property
    def hardware(self) -> str:
        """Hardware class of the decode workers."""
        return self._decode[0].hardware

    @property
    def stands_for(self) -> frozenset[str]:
        """The hardware class of the decode workers."""
        return self._decode[0].stands_for

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Prefill on one worker, then decode on another."""
        position = sum(request.prompt_ids)
        pair = self._pairs.get(request.trajectory_id)
        prefill, decode, shipped = pair or (_least(self._prefill), _least(self._decode), 0)
        await prefill.run(request.trajectory_id, position, 0)
        fresh = position - min(shipped, position)
        await asyncio.sleep(fresh * self._token_s)
        self._pairs.add(request.trajectory_id, (prefill, decode, position))
        async for chunk in decode.generate(request, prefilled=True):
            yield chunk

    async def abort(self, request_id: str) -> None:
        """Do nothing: closing the stream of a request ends it."""


def _least(engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
    return min(engines, key=lambda engine: len(engine.batch))
