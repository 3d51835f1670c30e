"""The adapter that an engine's versions consist of, in vLLM.

vLLM holds one adapter, whose matrices are replaced in place, so that requests in flight go on under
the new version as they do after an update of weights. A version of whole weights is served with an
adapter of zeros, since a request keeps its adapter. The invariant: every request of the
engine names this adapter, by the version under which it was submitted, so that no prefix that one
version cached is used under another.

Source: vLLM 0.32, `LoRARequest.load_inplace`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.vllm.receiver import written
from rollart_flow.engines.vllm.settings import named_request
from rollart_flow.models.lora import CONFIG_FILE, TENSORS_FILE, adapter_config

if TYPE_CHECKING:
    import torch

    from rollart_flow.engines.vllm.generation import VllmGeneration
    from rollart_flow.weights.base import AdapterEntry


async def lay(
    generation: VllmGeneration,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    adapter: AdapterEntry,
) -> None:
    """Have vLLM, which is paused, hold an adapter in place of an earlier one.

    Args:
        generation: the engine's requests, which name the adapter from now on.
        version: version of the policy with the adapter.
        tensors: matrices in PEFT's names.
        adapter: rank and scale of the matrices.
    """
    name, llm = _name(version), generation.llm
    config = adapter_config(tensors, adapter.rank, adapter.alpha)
    with _folder(tensors, config) as folder:
        await llm.add_lora(named_request(name, folder, load=True))
    await llm.update_weight_version(str(version))
    generation.lora = named_request(name)


async def lay_zeros(generation: VllmGeneration, version: int) -> None:
    """Have vLLM hold an adapter that changes nothing, for a version of whole weights."""
    await generation.llm.collective_rpc("lay_zeros")
    generation.lora = named_request(_name(version))


def _name(version: int) -> str:
    return f"version-{version}"


@contextmanager
def _folder(tensors: Mapping[str, torch.Tensor], config: str) -> Iterator[str]:
    """Provide an adapter as a folder, which vLLM's processes read; the matrices are in an unlinked
    file, whose space is freed however this process ends.

    Raises:
        WeightsError: the matrices cannot be written.
    """
    descriptor = written(tensors)
    try:
        with TemporaryDirectory(prefix="rollart-adapter-") as folder:
            (Path(folder) / CONFIG_FILE).write_text(config)
            (Path(folder) / TENSORS_FILE).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
            yield folder
    finally:
        os.close(descriptor)


def serves_adapters(llm: Any) -> bool:
    """Return whether vLLM has room for an adapter."""
    return llm.vllm_config.lora_config is not None
