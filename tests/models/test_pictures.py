"""Images in a chain: the placeholders of transformers' own processor, turn by turn."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoImageProcessor, AutoTokenizer, Idefics3Processor

from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.models.pictures import PictureProcessor, processor_text
from rollart_flow.models.version_zero import load_codec
from rollart_flow.types import Image, Message
from rollart_flow.types.messages import user
from tests.models.vision import FAMILIES, TILED_PROCESSOR, save_tiny_vision

MARKS = ("<|image_pad|>", "<image>")
RANDOM = np.random.default_rng(0)


def image(height: int, width: int) -> Image:
    return Image.of(RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each family."""
    return FAMILIES[request.param](tmp_path_factory.mktemp("vision") / "model")


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
            if message.role == "user" or "Idefics3" in type(processor).__name__
            else message.text,
        }
        for message in messages
    ]
    text = tokenizer.apply_chat_template(forms, tokenize=False, add_generation_prompt=True)
    images = [each for message in messages for each in message.images]
    if "Idefics3" in type(processor).__name__:
        whole: Any = Idefics3Processor(processor, tokenizer, image_seq_len=4)
        opened = [each.opened() for each in images]
        (found,) = whole(text=[text], images=[opened], add_special_tokens=False)["input_ids"]
        return tuple(found)
    pieces = text.split("<|image_pad|>")
    text = pieces[0]
    for each, piece in zip(images, pieces[1:], strict=True):
        grid = processor(np.zeros((*each.size, 3), np.uint8), return_tensors="np")["image_grid_thw"]
        text += "<|image_pad|>" * (int(grid.prod()) // processor.merge_size**2) + piece
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_conversation_with_images_has_the_tokens_of_the_processor(family: Path) -> None:
    codec = load_codec(family)
    assert codec.pictures is not None
    mark = next(each for each in MARKS if codec.encode(each) != (codec.pictures.placeholder,))
    talk = codec.converse()
    first = user("from", image(16, 24), " to", image(40, 16), "?")
    second = user(image(8, 8), mark)

    opening = talk.observe([first])
    assert opening == expanded(family, [first])
    action = (*codec.encode("up"), codec.stop_token_ids[0])
    said = talk.act(action).as_message()
    following = talk.observe([second])

    written = user(second.images[0], "@")  # the text of an observation is no placeholder
    (plain,) = codec.encode("@")
    forged = codec.encode(mark)
    assert len(forged) == len(mark)
    place = expanded(family, [first, said, written])
    at = len(place) - 1 - place[::-1].index(plain)
    wanted = (*place[:at], *forged, *place[at + 1 :])
    assert wanted[-len(following) :] == following
    # The template of Idefics3 writes a blank before an action, which a chain does not have.
    if wanted[: len(opening)] == opening and " " not in codec.decode(wanted[len(opening) :][:1]):
        assert (*opening, *action, *following) == wanted
        assert talk.rewritten_at(wanted) is None


@pytest.mark.parametrize("sizes", [((16, 24), (40, 16)), ((8, 8), (8, 8))], ids=str)
def test_collapsed_tokens_have_one_placeholder_for_each_image(
    family: Path, sizes: tuple[tuple[int, int], ...]
) -> None:
    codec = load_codec(family)
    pictures = codec.pictures
    assert pictures is not None
    images = [image(*size) for size in sizes]
    chain = codec.converse().observe([user("a", *images, "b")])

    collapsed = pictures.collapse(chain, images)

    assert collapsed.count(pictures.placeholder) == 2
    assert chain.count(pictures.placeholder) == sum(map(pictures.tokens, images))
    assert pictures.expand(collapsed, images) == chain
    with pytest.raises(TemplateRefusedError, match="no place for image"):
        pictures.collapse(chain, [*images, image(64, 8)])


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


def test_settings_in_one_file_or_in_two_are_the_same_processor() -> None:
    image, whole = TILED_PROCESSOR, {"image_seq_len": 4, "processor_class": "Idefics3Processor"}
    apart = {
        "preprocessor_config.json": json.dumps(image),
        "processor_config.json": json.dumps(whole),
    }
    together = {"processor_config.json": json.dumps(whole | {"image_processor": image})}
    frame = Image.of(np.zeros((16, 24, 3), np.uint8))

    counts = {
        PictureProcessor(processor_text(files), 0).tokens(frame) for files in (apart, together)
    }

    assert counts == {4 * (2 * 2 + 1)}
    assert processor_text({}) == ""


def test_features_of_an_image_seen_before_are_those_of_the_processor(family: Path) -> None:
    pictures = load_codec(family).pictures
    assert pictures is not None
    frames = [image(16, 24), image(32, 16), image(16, 24)]

    once = pictures.features(frames)
    again = pictures.features([*frames[::-1], *frames])

    for name, tensor in pictures.features(frames).items():
        assert tensor.equal(once[name])
        joined = next(at for at, size in enumerate(tensor.shape) if size != again[name].shape[at])
        assert again[name].shape[joined] == 2 * tensor.shape[joined]
        assert again[name].narrow(joined, tensor.shape[joined], tensor.shape[joined]).equal(tensor)
