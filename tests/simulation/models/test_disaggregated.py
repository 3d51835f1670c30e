"""Prefill and decode on separate workers."""

from collections import Counter

from rollart_flow.control.protocols import Inference
from rollart_flow.simulation.hardware import H20, QWEN3_8B, Roofline
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.disaggregated import DisaggregatedEngine
from rollart_flow.simulation.models.engine import SimulatedEngine
from tests.simulation.models.streams import ROOFLINE, gathered, request, tokens


async def test_prefill_workers_compute_prompts_and_decode_workers_sample() -> None:
    """Only new tokens cross the network, and a trajectory keeps its pair of workers."""
    left = lambda _, position: 300 if position == 2_000 else 100  # noqa: E731
    lost: Counter[str] = Counter()
    prefill = [
        SimulatedEngine(f"p{i}", ContinuousBatch(ROOFLINE, stored=True), left, lost) for i in (0, 1)
    ]
    slow = Roofline(QWEN3_8B, H20)
    decode = [SimulatedEngine(f"d{i}", ContinuousBatch(slow), left, lost) for i in (0, 1)]
    pair: Inference = DisaggregatedEngine(prefill, decode, 25.0, QWEN3_8B.kv_bytes)
    first = [chunk for _, chunk in await gathered(pair.generate(request(2_000)))]
    second = [chunk for _, chunk in await gathered(pair.generate(request(2_000, 300, 50)))]
    assert (tokens(first), tokens(second)) == (300, 100)
    sampled = [engine.batch.sampled_tokens for engine in decode]
    assert sorted(sampled) == [0, 400]
    assert [engine.batch.prefilled_tokens for engine in prefill] == [2_350, 0]
    assert sum(engine.batch.prefilled_tokens for engine in decode) == 0
    assert (pair.worker, pair.hardware) == ("2P2D", "H20")
