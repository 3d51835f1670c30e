"""The engine over transformers with images: logprobs are those of the trainer's model."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.errors import EngineError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Generation, GenerationRequest, Sampling
from tests.engines.conformance import generate
from tests.engines.pictured import IMAGES, requests, wanted
from tests.models.vision import FAMILIES


@pytest.fixture(scope="module", params=FAMILIES)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A policy of each family."""
    folder = FAMILIES[request.param](tmp_path_factory.mktemp("vision") / "model")
    return Policy.from_pretrained(folder, engine="transformers", max_context=128, max_batch=2)


@pytest.fixture(scope="module")
def folder(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy") / "model"
    materialize(policy, made)
    return made


def test_each_logprob_is_that_of_the_chain_with_its_own_images(
    policy: Policy, folder: Path
) -> None:
    asked = requests(folder)

    async def answers() -> list[Generation]:
        engine = build_engine(policy, str(folder), EngineOptions(seed=1))
        try:
            return list(await asyncio.gather(*(generate(engine, each) for each in asked)))
        finally:
            await engine.close()

    for request, answer in zip(asked, asyncio.run(answers()), strict=True):
        assert len(answer.token_ids) == 6
        assert answer.logprobs == pytest.approx(wanted(folder, request, answer), abs=1e-4)
    assert asked[0].prompt_ids == asked[1].prompt_ids


def test_images_for_a_model_that_takes_none_are_refused(tmp_path: Path) -> None:
    plain = Policy.tiny()
    materialize(plain, tmp_path / "model")

    async def ask() -> None:
        engine = build_engine(plain, str(tmp_path / "model"), EngineOptions(seed=1))
        try:
            request = GenerationRequest("a", (5, 6), Sampling(max_tokens=1))
            with pytest.raises(EngineError, match="takes no images"):
                await generate(engine, replace(request, images=IMAGES[:1]))
        finally:
            await engine.close()

    asyncio.run(ask())
