"""The engine over transformers with images: logprobs are those of the trainer's model."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.errors import EngineError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.types import Generation, GenerationRequest, Image, Sampling
from rollart_flow.types.messages import user
from tests.engines.conformance import generate
from tests.models.vision import save_tiny_vision

RANDOM = np.random.default_rng(0)
IMAGES = tuple(
    Image.of(RANDOM.integers(0, 256, (size, 16, 3), dtype=np.uint8)) for size in (16, 16, 24)
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = save_tiny_vision(tmp_path_factory.mktemp("vision") / "model")
    return Policy.from_pretrained(folder, engine="transformers", max_context=128, max_batch=2)


@pytest.fixture(scope="module")
def folder(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy") / "model"
    materialize(policy, made)
    return made


def requests(folder: Path) -> list[GenerationRequest]:
    """Equal tokens with other images, an image of another size, two images, and none."""
    codec = load_codec(folder)
    shown = [IMAGES[:1], IMAGES[1:2], IMAGES[2:], IMAGES[1:], ()]
    return [
        GenerationRequest(
            str(index),
            codec.converse().observe([user("go", *images)]),
            Sampling(max_tokens=6),
            images=images,
        )
        for index, images in enumerate(shown)
    ]


def wanted(folder: Path, request: GenerationRequest, answer: Generation) -> list[float]:
    """Logprobs by one forward of the trainer's model over the whole chain."""
    config, tensors = load_folder(folder)
    model, processor = config.build(), config.pictures()
    model.load_stored(tensors)
    assert processor is not None
    chain = torch.tensor([[*request.prompt_ids, *answer.token_ids]])
    features = {}
    if request.images:
        kinds = (chain == processor.placeholder) & (
            torch.arange(chain.shape[1]) < len(request.prompt_ids)
        )
        features = {**processor.features(request.images), "mm_token_type_ids": kinds.long()}
    with torch.no_grad():
        hidden = model(chain, **features)[0]
        every = torch.log_softmax(model.logits(hidden), -1)
    start = len(request.prompt_ids) - 1
    return [float(every[start + at, token]) for at, token in enumerate(answer.token_ids)]


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
