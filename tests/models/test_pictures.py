"""Images in a chain: the placeholders of transformers' own processor, turn by turn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoImageProcessor, AutoTokenizer

from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.models.pictures import PictureProcessor, collapse
from rollart_flow.models.version_zero import load_codec
from rollart_flow.types import Image, Message
from rollart_flow.types.messages import user
from tests.models.vision import save_tiny_vision

RANDOM = np.random.default_rng(0)


def image(height: int, width: int) -> Image:
    return Image.of(RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vision(tmp_path_factory.mktemp("vision") / "model")


def expanded(folder: Path, messages: Sequence[Message]) -> tuple[int, ...]:
    """What transformers' processor makes of messages; it needs torchvision only for videos."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    loader: Any = AutoImageProcessor
    processor = loader.from_pretrained(folder)
    forms = [
        {
            "role": str(message.role),
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
                for part in message.parts or (message.text,)
            ]
            if message.role == "user"
            else message.text,
        }
        for message in messages
    ]
    text = tokenizer.apply_chat_template(forms, tokenize=False, add_generation_prompt=True)
    images = [each for message in messages for each in message.images]
    pieces = text.split("<|image_pad|>")
    text = pieces[0]
    for each, piece in zip(images, pieces[1:], strict=True):
        grid = processor(np.zeros((*each.size, 3), np.uint8), return_tensors="np")["image_grid_thw"]
        text += "<|image_pad|>" * (int(grid.prod()) // processor.merge_size**2) + piece
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_conversation_with_images_has_the_tokens_of_the_processor(folder: Path) -> None:
    codec = load_codec(folder)
    talk = codec.converse()
    first = user("from", image(16, 24), " to", image(40, 16), "?")
    second = user(image(8, 8), "<|image_pad|>")

    chain = list(talk.observe([first]))
    assert tuple(chain) == expanded(folder, [first])
    action = [*codec.encode("up"), codec.stop_token_ids[0]]
    said = talk.act(action).as_message()
    chain += [*action, *talk.observe([second])]

    written = user(second.images[0], "@")  # the text of an observation is no placeholder
    (plain,) = codec.encode("@")
    forged = list(codec.encode("<|image_pad|>"))
    place = expanded(folder, [first, said, written])
    at = len(place) - 1 - place[::-1].index(plain)
    assert chain == [*place[:at], *forged, *place[at + 1 :]]
    assert talk.rewritten_at(chain) is None


def test_collapsed_tokens_have_one_placeholder_for_each_image(folder: Path) -> None:
    codec = load_codec(folder)
    shown = user(image(16, 24), image(40, 16))
    chain = codec.converse().observe([shown])

    (place,) = {token for token in chain if chain.count(token) > 2}
    assert collapse(chain, place).count(place) == 2
    assert len(chain) - len(collapse(chain, place)) == 2 * 3 + 5 * 2 - 2


def test_an_image_for_a_policy_without_a_vision_tower_is_refused(folder: Path) -> None:
    (folder / "preprocessor_config.json").rename(folder / "away")
    try:
        talk = load_codec(folder).converse()
    finally:
        (folder / "away").rename(folder / "preprocessor_config.json")

    with pytest.raises(TemplateRefusedError, match="takes no images"):
        talk.observe([user(image(8, 8))])


def test_an_action_with_a_placeholder_ends_the_conversation(folder: Path) -> None:
    codec = load_codec(folder)
    talk = codec.converse()
    chain = talk.observe([user(image(16, 24))])
    (place,) = {token for token in chain if chain.count(token) > 2}

    talk.act([place])

    with pytest.raises(TemplateRefusedError, match="placeholder"):
        talk.observe("next")


@pytest.mark.parametrize("text", ["{", "[]", '{"image_processor_type": "ClipImageProcessor"}'])
def test_an_image_processor_that_is_none_or_unknown_is_one_line(text: str) -> None:
    with pytest.raises(SettingsError, match="processor"):
        PictureProcessor(text, 0)
