"""A LoRA adapter that vLLM draws every token with, over whatever weights the engine holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollart_flow.models.lora import MOST_RANK, Adapter, read_adapter

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MOST_RANK)
"""Ranks that vLLM makes room for."""


def lora_arguments(folder: str | None) -> dict[str, Any]:
    """vLLM's arguments for an engine with an adapter; none for one without.

    Raises:
        SettingsError: the folder holds no LoRA adapter that vLLM takes.
    """
    if folder is None:
        return {}
    adapter: Adapter = read_adapter(folder)
    room = min(rank for rank in _RANKS if rank >= adapter.rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def lora_request(folder: str | None) -> LoRARequest | None:
    """The adapter as each request names it."""
    if folder is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, read_adapter(folder).folder)
