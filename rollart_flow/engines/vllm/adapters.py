"""The LoRA adapter that vLLM applies to every token, on top of the weights the engine holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollart_flow.models.lora import MOST_RANK, Adapter, read_adapter

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MOST_RANK)
"""Adapter ranks that vLLM can allocate."""


def lora_arguments(folder: str | None) -> dict[str, Any]:
    """Return vLLM's arguments for an engine with an adapter; empty if there is none.

    Raises:
        SettingsError: the folder holds no LoRA adapter that vLLM supports.
    """
    if folder is None:
        return {}
    adapter: Adapter = read_adapter(folder)
    room = min(rank for rank in _RANKS if rank >= adapter.rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def lora_request(folder: str | None) -> LoRARequest | None:
    """Return the adapter in the form that each request names, or None."""
    if folder is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, read_adapter(folder).folder)
