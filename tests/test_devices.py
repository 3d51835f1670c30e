"""What computes on a GPU leaves no tensor on the CPU: engine and trainer run here without one, on
tensors that have a shape, a dtype and a device but no numbers.

torch's fake tensors refuse an operator whose inputs lie on two devices, as CUDA does. The device is
`meta`, since a build for CPUs cannot differentiate on `cuda`. Where the host asks for a number it
is told 1. What it cannot show is what only a GPU does: the numbers, CUDA graphs, memory.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rollart_flow.algorithms import grpo
from rollart_flow.engines import embedded
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.graphs import DecodeGraphs
from rollart_flow.models.cached import CachedQwen3
from rollart_flow.models.key_values import KeyValues
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.backends import embedded as training
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.types import Generation, GenerationRequest, Sampling
from tests.engines.conformance import generate
from tests.trainers.cases import CONFIG, make_rows, table

ELSEWHERE = torch.device("meta")
BATCH = table(make_rows(6, seed=1))


@pytest.fixture(autouse=True)
def no_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors without numbers, and a device that is not the CPU."""
    dtypes: dict[torch.dtype, Any] = {
        torch.float32: np.float32,
        torch.float64: np.float64,
        torch.int64: np.int64,
        torch.uint8: np.uint8,
        torch.bool: np.bool_,
    }

    def numbers(tensor: torch.Tensor) -> Any:
        assert tensor.device.type == "cpu"
        return np.ones(tuple(tensor.shape), dtypes[tensor.dtype])

    monkeypatch.setattr(torch.Tensor, "numpy", numbers)
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: 1.0)
    for module in (embedded, training):
        monkeypatch.setattr(module, "computing_device", lambda name: ELSEWHERE)
    with FakeTensorMode():
        yield


def weights() -> dict[str, torch.Tensor]:
    """Weights of version 0, on the CPU."""
    return Qwen3(CONFIG).state_dict()


def test_two_devices_in_one_operator_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3) + torch.zeros(3, device=ELSEWHERE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_generates_where_its_device_is(dtype: str) -> None:
    samplings = (
        Sampling(max_tokens=6),
        Sampling(max_tokens=9, temperature=0.0, allowed_token_ids=(1, 2)),
        Sampling(max_tokens=4, temperature=0.7, top_p=0.9, top_k=5),
    )
    prompts = [tuple(range(1, 12 + index)) for index in range(3)]

    async def scenario() -> list[Generation]:
        engine = EmbeddedEngine(
            CONFIG, weights(), dtype=dtype, max_batch=4, cached_rows=2, max_context=64
        )
        requests = [
            GenerationRequest(str(index), prompt, sampling)
            for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        answers = await asyncio.gather(*(generate(engine, request) for request in requests))
        await engine.suspend()
        await engine.release()
        await engine.load(1, weights())
        await engine.resume()
        again = GenerationRequest("again", prompts[0], samplings[0])
        answers += [await generate(engine, again)]
        await engine.close()
        return answers

    answers = asyncio.run(scenario())
    assert [len(answer.token_ids) for answer in answers] == [6, 9, 4, 6]
    assert set(answers[-1].versions) == {1}


def test_a_step_that_is_captured_reads_nothing_from_the_cpu() -> None:
    model = CachedQwen3(CONFIG, weights(), torch.bfloat16, ELSEWHERE)
    cache = KeyValues(CONFIG, 6, 64, torch.bfloat16, ELSEWHERE)
    graphs = DecodeGraphs(model, cache, 6, capture=lambda compute: compute)
    tokens = np.arange(3)
    for wanted in (None, np.array([0, 2])):
        logits = graphs.decode(tokens, tokens, tokens, wanted)
        assert logits.device == ELSEWHERE
        assert logits.shape == (3 if wanted is None else 2, CONFIG.vocab_size)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
def test_a_step_trains_where_its_device_is() -> None:
    settings = RankSettings(micro_batch_tokens=100)
    trainer = EmbeddedTrainer(CONFIG, weights(), grpo(kl=0.1), settings)
    result = trainer.train_step(1, BATCH)
    assert '"device": "meta"' in result.kernels
    assert {tensor.device.type for tensor in trainer.weights().values()} == {"cpu"}
