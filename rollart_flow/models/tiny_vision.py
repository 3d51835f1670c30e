"""The model of a policy that is made from scratch and takes images: a small Qwen2.5-VL.

An image takes one token for every square of `TILE` pixels; one with more than `MOST_PIXELS` is made
smaller. The weights are a function of the policy alone: they are drawn from a generator of their
own, so that nothing else in the process changes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from tokenizers import AddedToken, Tokenizer

from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.picture_families import QwenPictures
from rollart_flow.models.policy import Policy

_START, _END, _VIDEO = "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"
_IMAGE = QwenPictures.mark
_MARKERS = (_START, _END, _IMAGE, _VIDEO)
_PATCH, _MERGED = 4, 2
TILE = _PATCH * _MERGED
"""Side of the square of pixels that one token stands for."""
MOST_PIXELS = 64 * TILE**2
_TEXT = "<user>{{ message['content'] }}"
_PARTS = (
    "<user>{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    f"{_START}{_IMAGE}{_END}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
)
"""A message of the user in the chat template of a tiny policy, without and with images."""


def vision_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files (name to text) of a tiny tokenizer with what images need.

    Args: `files` are those of `models.tokenizer.tiny_tokenizer_files`.
    """
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _MARKERS])
    settings = json.loads(files["tokenizer_config.json"])
    settings["chat_template"] = settings["chat_template"].replace(_TEXT, _PARTS)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "merge_size": _MERGED,
        "size": {"shortest_edge": TILE**2, "longest_edge": MOST_PIXELS},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return {
        **files,
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2, sort_keys=True),
        "preprocessor_config.json": json.dumps(processor, indent=2, sort_keys=True),
    }


def vision_config(policy: Policy, files: Mapping[str, str]) -> TransformersConfig:
    """Return the shape of the model.

    Args:
        policy: a policy made from scratch that takes images.
        files: those of `vision_files`.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    settings = json.loads(files["tokenizer_config.json"])
    ends = {
        f"{name}_token_id": tokenizer.token_to_id(settings[f"{name}_token"])
        for name in ("eos", "pad")
    }
    start, end, image, video = map(tokenizer.token_to_id, _MARKERS)
    values = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": policy.hidden,
            "intermediate_size": policy.intermediate,
            "num_hidden_layers": policy.layers,
            "num_attention_heads": policy.heads,
            "num_key_value_heads": policy.key_value_heads,
            "max_position_embeddings": policy.max_context,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": _sections(policy.head_dim // 2),
            },
            "tie_word_embeddings": True,
            "bos_token_id": None,
            **ends,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": policy.layers,
            "hidden_size": policy.hidden,
            "intermediate_size": policy.intermediate,
            "num_heads": policy.heads,
            "in_channels": 3,
            "patch_size": _PATCH,
            "temporal_patch_size": 2,
            "spatial_merge_size": _MERGED,
            "window_size": 2 * TILE,
            "fullatt_block_indexes": [policy.layers - 1],
            "out_hidden_size": policy.hidden,
        },
        "image_token_id": image,
        "video_token_id": video,
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "tie_word_embeddings": True,
    }
    return TransformersConfig.parse(values, json.dumps(ends), files["preprocessor_config.json"])


def vision_tensors(config: TransformersConfig, seed: int) -> dict[str, torch.Tensor]:
    """Return fresh float32 weights in Hugging Face names; equal seeds give equal weights."""
    model = config.build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                # As for the other tiny policy: small enough to be stable, and large enough for the
                # prompt to have an influence.
                deviation = 0.8 * parameter[0].numel() ** -0.5
                parameter.normal_(0.0, deviation, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model.stored()


def _sections(frequencies: int) -> list[int]:
    """Return how many of the frequencies of an attention head stand for time, height and width."""
    time = frequencies // 4
    height = (frequencies - time) // 2
    return [time, height, frequencies - time - height]
