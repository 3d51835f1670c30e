"""What vLLM is asked for a chain with images.

vLLM's models that take images import torchvision, of which there is no build for the torch of this
machine. A recorder of the calls therefore stands in for vLLM's engine here.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollart_flow import Policy
from rollart_flow.engines.registry import check_engine
from rollart_flow.engines.vllm import variant
from rollart_flow.engines.vllm.generation import VllmGeneration
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.engines.vllm.stream import VllmStream
from rollart_flow.errors import EngineError, MissingExtraError
from rollart_flow.types import GenerationRequest, Image, Sampling

PLACE = 9
IMAGES = tuple(Image.of(np.full((8, 8, 3), shade, np.uint8)) for shade in (0, 200))
REQUEST = GenerationRequest(
    "a", (1, PLACE, PLACE, PLACE, 2, 3, PLACE, 4), Sampling(max_tokens=1), images=IMAGES
)


class RecordingEngine:
    """Takes a prompt as vLLM's engine does, and answers that it saw `expanded`."""

    def __init__(self, expanded: tuple[int, ...]) -> None:
        self.prompts: list[Any] = []
        self._expanded = expanded

    async def generate(self, prompt: Any, *_: object, **__: object) -> AsyncIterator[Any]:
        self.prompts.append(prompt)
        done = SimpleNamespace(token_ids=(), finish_reason="length", weight_versions=())
        yield SimpleNamespace(prompt_token_ids=list(self._expanded), outputs=[done])


def asked(engine: RecordingEngine, placeholder: int | None = PLACE) -> Any:
    generation = VllmGeneration(engine, (64, 10), VllmSettings(), 0, placeholder)
    asyncio.run(generation.answer(VllmStream(REQUEST, 8)))
    return engine.prompts[0]


def test_vllm_gets_one_placeholder_for_each_image_with_its_pixels_and_its_name() -> None:
    prompt = asked(RecordingEngine(REQUEST.prompt_ids))

    assert prompt["prompt_token_ids"] == [1, PLACE, 2, 3, PLACE, 4]
    shades = [np.asarray(image)[0, 0, 0] for image in prompt["multi_modal_data"]["image"]]
    assert shades == [0, 200]
    assert prompt["multi_modal_uuids"]["image"] == [image.image_id for image in IMAGES]


def test_images_that_take_other_tokens_in_vllm_than_in_the_chain_are_refused() -> None:
    with pytest.raises(EngineError, match="expands its images to other tokens"):
        asked(RecordingEngine((1, PLACE, 2, 3, PLACE, 4)))


def test_images_for_a_model_that_takes_none_are_refused() -> None:
    with pytest.raises(EngineError, match="takes no images"):
        asked(RecordingEngine(REQUEST.prompt_ids), placeholder=None)


def test_a_model_that_takes_images_needs_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"image_token_id": 9}')
    monkeypatch.setattr(
        variant, "find_spec", lambda name: None if name == "torchvision" else object()
    )

    with pytest.raises(MissingExtraError, match="torchvision"):
        check_engine(Policy.from_pretrained(tmp_path, engine="vllm"))
