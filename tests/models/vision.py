"""Tiny models that take images, in folders as transformers saves them: Qwen2.5-VL and Idefics3."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from rollart_flow.models.tokenizer import tiny_tokenizer_files

VISION = (
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}<user>{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Of Qwen2.5-VL, with the markers of a tiny policy."""
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 8 * 8, "longest_edge": 64 * 64},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def save_tiny_vision(folder: Path, *, seed: int = 0, max_context: int = 512) -> Path:
    """Write the folder; equal seeds give equal weights."""
    files = tiny_tokenizer_files(("left", "down", "right", "up"), max_context)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in VISION])
    start, end, _, image, video = map(tokenizer.token_to_id, VISION)
    text = {
        "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": max_context, "bos_token_id": None, "eos_token_id": 1,
        "pad_token_id": 0, "tie_word_embeddings": True, "initializer_range": 0.1,
        "rope_parameters": {
            "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0,
        },
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "in_channels": 3,
        "out_hidden_size": 32, "fullatt_block_indexes": [1],
    }  # fmt: skip
    make_config: Any = Qwen2_5_VLConfig
    config = make_config(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end, tie_word_embeddings=True,
    )  # fmt: skip
    kind: Any = Qwen2_5_VLForConditionalGeneration
    _save(folder, kind, config, seed)
    settings = json.loads(files["tokenizer_config.json"]) | {"chat_template": TEMPLATE}
    _write(folder, tokenizer, files | {
        "tokenizer_config.json": json.dumps(settings),
        "preprocessor_config.json": json.dumps(PROCESSOR),
    })  # fmt: skip
    return folder


TILED = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    *(f"<row_{y}_col_{x}>" for y in (1, 2) for x in (1, 2)),
)  # fmt: skip
TILED_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""Of the form of SmolVLM's, which shows nothing of a text that is no part."""
TILED_PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "processor_class": "Idefics3Processor",
    "do_image_splitting": True,
    "max_image_size": {"longest_edge": 16},
    "size": {"longest_edge": 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def save_tiny_tiled(folder: Path, *, seed: int = 0, max_context: int = 512) -> Path:
    """Write an Idefics3, which splits images into up to 2 x 2 tiles; equal seeds, equal weights.

    Heads of the language model are 32 wide, which vLLM computes on CPUs.
    """
    files = tiny_tokenizer_files(("left", "down", "right", "up"), max_context)
    tokenizer = Tokenizer.from_str(files["tokenizer.json"])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in TILED])
    stop = tokenizer.token_to_id("<end_of_utterance>")
    text = {
        "model_type": "llama", "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": max_context, "bos_token_id": None,
        "eos_token_id": stop, "pad_token_id": 0, "tie_word_embeddings": False,
        "initializer_range": 0.1,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "initializer_range": 0.1,
    }  # fmt: skip
    make_config: Any = Idefics3Config
    config = make_config(
        text_config=text, vision_config=vision, scale_factor=2, pad_token_id=0,
        image_token_id=tokenizer.token_to_id("<image>"), tie_word_embeddings=False,
    )  # fmt: skip
    kind: Any = Idefics3ForConditionalGeneration
    _save(folder, kind, config, seed)
    settings = json.loads(files["tokenizer_config.json"]) | {
        "chat_template": TILED_TEMPLATE, "eos_token": "<end_of_utterance>",
    }  # fmt: skip
    _write(folder, tokenizer, files | {
        "tokenizer_config.json": json.dumps(settings),
        "preprocessor_config.json": json.dumps(TILED_PROCESSOR),
        "processor_config.json": json.dumps(
            {"processor_class": "Idefics3Processor", "image_seq_len": 4}
        ),
    })  # fmt: skip
    return folder


FAMILIES = {"qwen2.5-vl": save_tiny_vision, "idefics3": save_tiny_tiled}


def _save(folder: Path, kind: Any, config: Any, seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind(config).save_pretrained(folder)


def _write(folder: Path, tokenizer: Tokenizer, texts: dict[str, str]) -> None:
    for name, content in (texts | {"tokenizer.json": tokenizer.to_str()}).items():
        (folder / name).write_text(content, encoding="utf-8")
