"""Images of observations: what becomes one, by what name, and what is refused."""

from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as pillow  # noqa: N813  the module and its class have one name

from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Image, Message, Role
from rollart_flow.types.images import MOST_BYTES, checked_image_id
from rollart_flow.types.messages import message_from_json, user

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 8, 3), dtype=np.uint8)


def file_of(pixels: np.ndarray[Any, Any], kind: str, **extra: object) -> bytes:
    file = BytesIO()
    pillow.fromarray(pixels).save(file, format=kind, **extra)
    return file.getvalue()


def test_equal_pixels_are_the_same_image_whatever_they_came_in() -> None:
    of_array = Image.of(PIXELS)

    assert (
        of_array
        == Image.of(file_of(PIXELS, "PNG", dpi=(300, 300)))
        == Image.of(pillow.fromarray(PIXELS).convert("RGBA"))
    )
    assert Image.of(PIXELS[::-1].copy()) != of_array
    assert of_array.size == (6, 8)
    assert Image.of(file_of(PIXELS, "JPEG")).size == (6, 8)


def test_the_stored_file_has_the_pixels_and_no_other_data() -> None:
    png = Image.of(file_of(PIXELS, "PNG", dpi=(300, 300))).png

    assert png is not None
    with pillow.open(BytesIO(png)) as opened:
        assert (np.asarray(opened) == PIXELS).all()
        assert opened.info == {}
    assert Image.from_file(png).png == png


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"GIF89a", "no image"),
        (b"", "no image"),
        (bytes(MOST_BYTES + 1), "more than"),
        (file_of(PIXELS, "PNG")[:60], "no image"),
        (file_of(PIXELS, "GIF"), "no image"),
        (PIXELS.astype(np.float32), "no image"),
        (PIXELS[:, :, 0], "no image"),
        (PIXELS[:0], "no image"),
        (np.broadcast_to(np.uint8(0), (1 << 13, 1 << 13, 3)), "more than"),
        ("picture.png", "no image"),
        (None, "no image"),
    ],
    ids=range(11),
)
def test_what_is_no_image_is_refused_with_one_line(source: object, why: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=why) as refused:
        Image.of(source)

    assert "\n" not in str(refused.value)


def test_a_file_that_claims_many_pixels_is_refused_before_it_is_decoded() -> None:
    claims = bytearray(file_of(PIXELS, "PNG"))
    claims[16:24] = (1 << 14).to_bytes(4, "big") * 2

    with pytest.raises(EnvironmentFailedError):
        Image.of(bytes(claims))


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_hostile_bytes_are_an_image_or_one_line(noise: bytes, cut: int) -> None:
    good = file_of(PIXELS, "PNG")
    for source in (noise, good[:cut] + noise, good[:cut] + noise + good[cut + len(noise) :]):
        with suppress(EnvironmentFailedError):
            assert Image.of(source).checked().size[0] > 0


@pytest.mark.parametrize("name", ["../run.json", "", "A" * 64, "a" * 63, "a" * 64 + "\n", "a/b"])
def test_only_a_digest_is_the_name_of_an_image(name: str) -> None:
    with pytest.raises(ValueError, match="names no image"):
        checked_image_id(name)


def test_a_message_keeps_text_and_images_in_their_order_and_is_stored_by_names() -> None:
    image = Image.of(PIXELS)
    message = user("before", image, "after")

    form = message.as_json()

    url = {"url": f"sha256:{image.image_id}"}
    assert form["content"] == [
        {"type": "text", "text": "before"},
        {"type": "image_url", "image_url": url},
        {"type": "text", "text": "after"},
    ]
    assert message_from_json(form) == message
    assert message_from_json(form).images[0].png is None
    assert message_from_json(form, {image.image_id: image}).images[0].png == image.png
    assert message.text == "beforeafter"
    assert message.shown == f"before[image {image.image_id[:12]}]after"


def test_a_message_of_text_alone_has_the_form_it_had() -> None:
    assert user("a", "b") == Message(Role.USER, "ab")
    assert user("a").as_json() == {"role": "user", "content": "a"}
