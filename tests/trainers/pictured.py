"""A batch whose rows have images, for a tiny model that takes them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollart_flow.models.version_zero import load_codec
from rollart_flow.store.images import carrying
from rollart_flow.types import Image
from rollart_flow.types.messages import user

_RANDOM = np.random.default_rng(0)
IMAGES = tuple(
    Image.of(_RANDOM.integers(0, 256, (size, 16, 3), dtype=np.uint8)) for size in (16, 24, 8)
)
ROWS = ((IMAGES[0],), (IMAGES[1], IMAGES[2]), ())
"""Images of each trajectory, one a turn; the last one has text alone."""


def placeholder(folder: Path) -> int:
    """The token that stands for a part of an image."""
    found: int = json.loads((folder / "config.json").read_text())["image_token_id"]
    return found


def pictured_batch(folder: Path) -> pa.Table:
    """Three chains, whose actions are random tokens; the second ends with a sampled placeholder."""
    codec, random = load_codec(folder), np.random.default_rng(1)
    rows = []
    for index, images in enumerate(ROWS):
        talk, ids, mask = codec.converse(), [], []
        for image in images or (None,):
            shown = talk.observe([user("go", *([] if image is None else [image]))])
            action = [*random.integers(5, 90, 3).tolist(), codec.stop_token_ids[0]]
            talk.act(action)
            ids += [*shown, *action]
            mask += [False] * len(shown) + [True] * len(action)
        if index == 1:
            ids[-2] = placeholder(folder)
        rows.append(
            {
                "trajectory_id": str(index),
                "token_ids": ids,
                "action_mask": mask,
                "logprobs": [-1.0 if acted else 0.0 for acted in mask],
                "sampling": {
                    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "allowed_token_ids": [],
                },
                "kept_token_ids": None,
                "advantage": [1.0 - index],
                "weight": 1.0,
                "images": [image.image_id for image in images] or None,
            }
        )  # fmt: skip
    return carrying(pa.Table.from_pylist(rows), IMAGES)
