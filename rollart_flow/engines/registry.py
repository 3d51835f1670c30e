"""Registry of engines by the name in `policy.engine`; an engine is imported when it is built."""

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.variant import EngineCapabilities, EngineOptions, EngineVariant
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import NO_MIXTURE, is_mixture
from rollart_flow.models.policy import Policy
from rollart_flow.registry import Registry
from rollart_flow.weights.transport import SentWeights

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
    """Return the capabilities of the policy's engine without loading the engine.

    Raises:
        SettingsError: no engine has that name.
    """
    return ENGINES.load(policy.engine).capabilities


def check_engine(
    policy: Policy, *, units: int = 1, prefill_workers: int = 0, adapted: bool = False
) -> None:
    """Reject, before a run starts, an engine that cannot serve the policy, without loading it.

    Args:
        policy: names the engine.
        units: number of units of a resource class that one engine computes on.
        prefill_workers: number of engines that compute prompts for other engines.
        adapted: whether the engine is to generate with a LoRA adapter.

    Raises:
        SettingsError: no engine has that name, or the engine does not support the shape of the
        model, the number of units, prefill for other engines, or adapters.
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
    sent: SentWeights | None = None,
) -> Engine:
    """Build the engine named by `policy.engine`, which serves the model in `folder` as version 0.

    Args:
        policy: source of the engine's settings.
        folder: a Hugging Face folder.
        seed: seed of all sampling.
        worker: name of the worker that holds the engine.
        units: units of a resource class that the engine computes on.
        phase: role of the engine when separate workers compute prompts; None means both roles.
        lora: folder of a LoRA adapter to generate with; None means the weights alone.
        sent: how the trainer sends weights to the engine's GPU; None means that the engine reads
        them.

    Raises:
        SettingsError, MissingExtraError: as for `check_engine`, or the engine needs a GPU and this
        process sees none.
        EngineError: the engine could not start.
    """
    check_engine(
        policy, units=units, prefill_workers=int(phase is not None), adapted=lora is not None
    )
    options = EngineOptions(seed, worker, units, phase, lora, sent)
    return ENGINES.load(policy.engine).build(policy, folder, options)
