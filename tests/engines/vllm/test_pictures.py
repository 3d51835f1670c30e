"""What vLLM is asked for a chain with images.

vLLM starts slowly, and reads the images of most models with torchvision, of which there is no build
for the torch of this machine. A recorder of the calls therefore stands in for vLLM's engine here;
`test_images` has vLLM itself compute those of a model that it reads without torchvision.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollart_flow import Policy
from rollart_flow.cli.doctor import examine
from rollart_flow.engines.registry import check_engine
from rollart_flow.engines.vllm import vision
from rollart_flow.engines.vllm.generation import VllmGeneration
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.engines.vllm.stream import VllmStream
from rollart_flow.errors import EngineError, MissingExtraError
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.types import GenerationRequest, Image, Sampling
from tests.models.vision import PROCESSOR

IMAGES = tuple(Image.of(np.full((8, 8 * n, 3), 100 * n, np.uint8)) for n in (1, 2))
PLACE = 3
"""Placeholder of the processor below, which gives an image one token for each 8 x 8 pixels."""
PICTURES = PictureProcessor(
    json.dumps(PROCESSOR), PLACE, lambda text: (PLACE,) * text.count("<|image_pad|>")
)
REQUEST = GenerationRequest(
    "a", (1, PLACE, 2, 5, PLACE, PLACE, 4), Sampling(max_tokens=1), images=IMAGES
)


class RecordingEngine:
    """Takes a prompt as vLLM's engine does, and answers that it saw `expanded`."""

    def __init__(self, expanded: Sequence[int]) -> None:
        self.prompts: list[Any] = []
        self._expanded = expanded

    async def generate(self, prompt: Any, *_: object, **__: object) -> AsyncIterator[Any]:
        self.prompts.append(prompt)
        done = SimpleNamespace(token_ids=(), finish_reason="length", weight_versions=())
        yield SimpleNamespace(prompt_token_ids=list(self._expanded), outputs=[done])


def asked(
    engine: RecordingEngine,
    pictures: PictureProcessor | None = PICTURES,
    request: GenerationRequest = REQUEST,
) -> Any:
    generation = VllmGeneration(engine, (64, 10), VllmSettings(), 0, pictures)
    asyncio.run(generation.answer(VllmStream(request, 8)))
    return engine.prompts[0]


def test_vllm_gets_one_placeholder_for_each_image_with_its_pixels_and_its_name() -> None:
    prompt = asked(RecordingEngine(REQUEST.prompt_ids))

    assert prompt["prompt_token_ids"] == [1, PLACE, 2, 5, PLACE, 4]
    shades = [np.asarray(image)[0, 0, 0] for image in prompt["multi_modal_data"]["image"]]
    assert shades == [100, 200]
    assert prompt["multi_modal_uuids"]["image"] == [image.image_id for image in IMAGES]


def test_images_that_take_other_tokens_in_vllm_than_in_the_chain_are_refused() -> None:
    with pytest.raises(EngineError, match="expands its images to other tokens"):
        asked(RecordingEngine((1, PLACE, 2, 5, PLACE, 4)))


def test_a_chain_without_a_place_for_an_image_is_refused() -> None:
    bare = replace(REQUEST, prompt_ids=(1, PLACE, 2))

    with pytest.raises(EngineError, match="no place for image"):
        asked(RecordingEngine(bare.prompt_ids), request=bare)


def test_images_for_a_model_that_takes_none_are_refused() -> None:
    with pytest.raises(EngineError, match="takes no images"):
        asked(RecordingEngine(REQUEST.prompt_ids), pictures=None)


def folder_of(place: Path, architecture: str) -> Path:
    """A folder that declares a model that takes images."""
    place.mkdir()
    config = {"image_token_id": 9, "architectures": [architecture]}
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_a_model_whose_images_need_torchvision_is_refused_where_it_is_missing_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qwen = folder_of(tmp_path / "qwen", "Qwen2_5_VLForConditionalGeneration")
    policy = Policy.from_pretrained(qwen, engine="vllm")
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="torchvision, which is not installed"):
        check_engine(policy)

    monkeypatch.setattr(vision, "find_spec", lambda name: object())
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    vision.torchvision_problem.cache_clear()
    with pytest.raises(MissingExtraError, match="nms does not exist"):
        check_engine(policy)

    (tmp_path / "torchvision.py").write_text("")
    vision.torchvision_problem.cache_clear()
    check_engine(policy)
    vision.torchvision_problem.cache_clear()


def test_a_model_whose_images_need_no_torchvision_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    idefics = folder_of(tmp_path / "idefics", "Idefics3ForConditionalGeneration")

    check_engine(Policy.from_pretrained(idefics, engine="vllm"))


def test_doctor_says_whether_torchvision_can_be_used() -> None:
    found = {finding.name: finding for finding in examine()}["torchvision"]

    assert found.usable == (found.version is not None and not vision.torchvision_problem())
    assert found.usable or found.hint
