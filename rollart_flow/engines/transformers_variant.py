"""The description of the engine that computes with transformers; loads neither torch nor it."""

from importlib.util import find_spec

from rollart_flow.engines.base import Engine
from rollart_flow.engines.registry import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.errors import MissingExtraError
from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Requirement


class TransformersVariant(EngineVariant):
    """The embedded engine's batching over a model of transformers, in the caller's process."""

    capabilities = EngineCapabilities(
        serves_mixtures=True, takes_images=True, follows_policy_device=True
    )
    requirements = (Requirement("transformers", ("transformers",), "hf"),)

    def check(self, policy: Policy, *, prefill_workers: int) -> None:
        if find_spec("transformers") is None:
            raise MissingExtraError(
                "policy.engine 'transformers' needs an extra: pip install 'rollart-flow[hf]'"
            )

    def build(self, policy: Policy, folder: str, options: EngineOptions) -> Engine:
        from rollart_flow.engines.embedded import EmbeddedEngine
        from rollart_flow.models.folder import load_folder

        return EmbeddedEngine(
            *load_folder(folder, TRANSFORMERS),
            seed=options.seed,
            dtype=policy.computes_in,
            device=policy.device,
            max_context=policy.max_context,
            max_batch=policy.max_batch,
            eager=True,
        )


VARIANT = TransformersVariant()
