"""Engines by the name that `policy.engine` gives. An engine is imported when it is built."""

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.variant import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.engines.vllm.receiver import Sent
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import NO_MIXTURE, is_mixture
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Registry

ENGINES: Registry[EngineVariant] = Registry(
    "engines",
    {
        "embedded": "rollart_flow.engines.embedded_variant:VARIANT",
        "vllm": "rollart_flow.engines.vllm.variant:VARIANT",
    },
    setting="policy.engine",
    kind=EngineVariant,
)


def engine_capabilities(policy: Policy) -> EngineCapabilities:
    """What the policy's engine can do; loads no engine.

    Raises:
        SettingsError: no engine has that name.
    """
    return ENGINES.load(policy.engine).capabilities


def check_engine(
    policy: Policy, *, units: int = 1, prefill_workers: int = 0, adapted: bool = False
) -> None:
    """Refuse, before a run starts, an engine that will not serve the policy; loads no engine.

    Args:
        policy: names the engine.
        units: units of a resource class that one engine is to compute on.
        prefill_workers: number of engines that compute prompts for the others.
        adapted: whether the engine is to generate with a LoRA adapter.

    Raises:
        SettingsError: no engine has that name, or it does not compute a model of this shape, or
            not on so many units, or no prompts for others, or takes no adapter.
        MissingExtraError: the engine's packages are not installed.
    """
    variant = ENGINES.load(policy.engine)
    can = variant.capabilities
    if prefill_workers and not can.prefills:
        raise SettingsError(
            f"prefill_workers={prefill_workers}: the {policy.engine} engine computes no "
            "prompts for others; take 0, or policy.engine=vllm"
        )
    if units > 1 and not can.splits_model:
        raise SettingsError(
            f"engine_units={units}: the {policy.engine} engine computes on one unit; "
            "take 1, or policy.engine=vllm"
        )
    if adapted and not can.takes_adapters:
        raise SettingsError(
            f"lora: the {policy.engine} engine takes no adapter; leave it away, or take "
            "policy.engine=vllm"
        )
    if not can.serves_mixtures and is_mixture(policy.path):
        raise SettingsError(NO_MIXTURE)
    variant.check(policy, prefill_workers=prefill_workers)


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
        seed: seed of all sampling.
        worker: name of the worker that holds the engine.
        units: units of a resource class that the engine computes on.
        phase: what the engine does where prompts are computed on workers of their own; None: all.
        lora: folder of a LoRA adapter to generate with; None: the weights alone.
        sent: how the trainer sends weights to the engine's GPU; None: the engine reads them.

    Raises:
        SettingsError, MissingExtraError: as `check_engine`; or the engine is to compute on a GPU,
            and this process sees none.
        EngineError: the engine could not start.
    """
    check_engine(
        policy, units=units, prefill_workers=int(phase is not None), adapted=lora is not None
    )
    options = EngineOptions(seed, worker, units, phase, lora, sent)
    return ENGINES.load(policy.engine).build(policy, folder, options)
