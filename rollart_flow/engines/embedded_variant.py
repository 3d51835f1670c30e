"""The description of the embedded engine; loads no torch."""

from typing import ClassVar

from rollart_flow.engines.base import Engine
from rollart_flow.engines.registry import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import AUTO
from rollart_flow.models.policy import Policy


class EmbeddedVariant(EngineVariant):
    """The engine that runs in the process of its caller."""

    capabilities = EngineCapabilities(follows_policy_device=True)
    implementation: ClassVar[str] = AUTO
    """The implementation of the model that is taken (`models.architectures`)."""

    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        if why := policy.foreign:
            raise SettingsError(
                f"policy: the embedded engine computes Qwen3 alone, and the model has {why}; take "
                "policy.engine=vllm, or transformers"
            )

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        from rollart_flow.engines.embedded import EmbeddedEngine
        from rollart_flow.models.folder import load_folder

        return EmbeddedEngine(
            *load_folder(folder, self.implementation),
            seed=options.seed,
            dtype=policy.computes_in,
            device=policy.device,
            max_context=policy.max_context,
            max_batch=policy.max_batch,
            eager=policy.eager,
        )


VARIANT = EmbeddedVariant()
