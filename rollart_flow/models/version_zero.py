"""Version 0 of a policy: a Hugging Face folder with its model, tokenizer and chat settings.

The version is a function of the policy alone. This module does not import torch by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import Policy

if TYPE_CHECKING:
    from rollart_flow.models.chat.codec import TextCodec
    from rollart_flow.models.language_model import ModelShape
    from rollart_flow.models.qwen3 import ModelConfig


def materialize(policy: Policy, folder: str | Path) -> None:
    """Write version 0, before any warm start, as a Hugging Face folder, atomically.

    The same policy gives the same bytes, unless its chat template asks for the time.

    Raises:
        SettingsError: there is no such pretrained model, none that is known, or no usable chat
            template, its context is shorter than `max_context`, or `folder` exists.
        MissingExtraError: the model needs transformers, which is not installed.
        WeightsError: the pretrained weights are damaged or do not fit their config.
        OSError: the folder cannot be written.
    """
    from rollart_flow.models.chat.codec import TextCodec
    from rollart_flow.models.folder import load_pretrained, save_folder
    from rollart_flow.models.qwen3 import Qwen3
    from rollart_flow.models.tokenizer import tiny_tokenizer_files, tokenizer_files

    if policy.path is None:
        files = tiny_tokenizer_files(policy.words, policy.max_context)
        if policy.images:
            _save_vision(policy, folder, files)
            return
        files |= _chat_files(policy, files)
        tiny = _tiny_config(policy, TextCodec(files))
        model = Qwen3(tiny)
        model.initialize(policy.seed)
        save_folder(folder, tiny, model.state_dict(), files)
        return
    path = str(policy.located().path)
    config, tensors = load_pretrained(path)
    _check_positions(policy, config)
    files = tokenizer_files(path)
    files |= _chat_files(policy, files)
    TextCodec(files)  # refuse an unusable tokenizer now, not in a rollout worker
    save_folder(folder, config, tensors, files)


def check_pretrained(policy: Policy) -> None:
    """Refuse a pretrained model that no run can begin with; reads no tensor.

    Raises:
        SettingsError: there is no such model, or none that is known; its context is shorter than
            `max_context`.
        MissingExtraError: the model needs transformers, which is not installed.
    """
    from rollart_flow.models.folder import read_config

    _check_positions(policy, read_config(str(policy.located().path)))


def _check_positions(policy: Policy, config: ModelShape) -> None:
    if config.max_position_embeddings < policy.max_context:
        raise SettingsError(
            f"policy: max_context ({policy.max_context}) exceeds the model's "
            f"{config.max_position_embeddings} positions"
        )


def _save_vision(policy: Policy, folder: str | Path, tokenizer: Mapping[str, str]) -> None:
    from rollart_flow.models.folder import save_folder
    from rollart_flow.models.tiny_vision import vision_config, vision_files, vision_tensors

    files = vision_files(tokenizer)
    files |= _chat_files(policy, files)
    config = vision_config(policy, files)
    save_folder(folder, config, vision_tensors(config, policy.seed), files)


def load_codec(folder: str | Path) -> TextCodec:
    """Return the tokenizer of a folder, which encodes observations and decodes actions.

    Raises:
        SettingsError: there is no tokenizer, or no chat template that can be encoded turn by turn.
    """
    from rollart_flow.models.chat.codec import TextCodec
    from rollart_flow.models.tokenizer import tokenizer_files

    return TextCodec(tokenizer_files(folder))


def policy_codec(policy: Policy) -> TextCodec:
    """Return the tokenizer of a pretrained policy, with the chat settings of the policy.

    It is the codec of version 0, before any run has written it.

    Raises:
        SettingsError: those of `load_codec`, or no chat format has the name.
    """
    from rollart_flow.models.chat.codec import TextCodec
    from rollart_flow.models.tokenizer import tokenizer_files

    if policy.path is None:
        raise SettingsError("policy: one that is made from scratch has no tokenizer in a folder")
    files = tokenizer_files(str(policy.located().path))
    return TextCodec(files | _chat_files(policy, files))


def vocabulary_of(folder: str | Path) -> int:
    """Return the number of token ids of the model in a folder; reads no tensor."""
    values = json.loads((Path(folder) / "config.json").read_text())
    size: int = {**values, **(values.get("text_config") or {})}["vocab_size"]
    return size


def _chat_files(policy: Policy, files: Mapping[str, str]) -> dict[str, str]:
    """Return the chat.json of a policy, by name; none if the defaults say the same.

    A template that asks for the time gets that of this call in all renderings of the run.
    """
    from rollart_flow.models.chat.settings import ChatSettings
    from rollart_flow.models.chat.template import CLOCK
    from rollart_flow.models.tokenizer import CHAT_FILE

    asks = any(CLOCK in text for text in files.values())
    settings = ChatSettings(policy.chat_format, policy.template_options, policy.history)
    if not asks and settings == ChatSettings():
        return {}
    if asks:
        settings = replace(settings, now=datetime.now())
    return {CHAT_FILE: settings.as_text()}


def _tiny_config(policy: Policy, codec: TextCodec) -> ModelConfig:
    from rollart_flow.models.qwen3 import ModelConfig

    return ModelConfig(
        vocab_size=codec.vocab_size,
        hidden_size=policy.hidden,
        intermediate_size=policy.intermediate,
        num_hidden_layers=policy.layers,
        num_attention_heads=policy.heads,
        num_key_value_heads=policy.key_value_heads,
        head_dim=policy.head_dim,
        max_position_embeddings=policy.max_context,
        eos_token_id=codec.stop_token_ids[0],
        pad_token_id=codec.pad_token_id,
        # The usual 0.02 suits wide models; in a narrow model it hides the influence of the prompt.
        initializer_range=0.8 * policy.hidden**-0.5,
    )
