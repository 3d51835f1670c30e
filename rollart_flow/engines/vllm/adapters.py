"""A LoRA adapter that an engine draws every token with, from a folder in PEFT's format.

The invariant: an engine that has one never serves other weights under it: `VllmEngine.load` refuses
them, since the adapter was made for those that the engine was started with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for."""


def lora_arguments(folder: str | None) -> dict[str, Any]:
    """vLLM's arguments for an engine with an adapter; none for one without.

    Raises:
        SettingsError: the folder holds no LoRA adapter, or one of a rank that vLLM does not take.
    """
    if folder is None:
        return {}
    try:
        rank = json.loads((Path(folder) / "adapter_config.json").read_text())["r"]
        room = min(each for each in _RANKS if each >= rank)
    except (OSError, ValueError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise SettingsError(
            f"engine: lora must be the folder of a LoRA adapter in PEFT's format, of a rank up to "
            f"{_RANKS[-1]}; {folder!r} is not: {line}"
        ) from error
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def lora_request(folder: str | None) -> LoRARequest | None:
    """The adapter as each request names it."""
    if folder is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, str(Path(folder).resolve()))
