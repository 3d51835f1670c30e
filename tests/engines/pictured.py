"""Requests with images, and their logprobs by the trainer's model."""

from pathlib import Path

import numpy as np
import torch

from rollart_flow.models.folder import load_folder
from rollart_flow.models.version_zero import load_codec
from rollart_flow.types import Generation, GenerationRequest, Image, Sampling
from rollart_flow.types.messages import user

RANDOM = np.random.default_rng(0)
IMAGES = tuple(
    Image.of(RANDOM.integers(0, 256, (size, 16, 3), dtype=np.uint8)) for size in (16, 16, 24)
)


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
