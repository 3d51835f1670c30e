"""The configurations that ROLLART and ROLL Flash measured, named as the papers name them.

Hardware and sizes are the papers'; lengths and latencies are those of `simulation.workloads`. The
invariant: nothing here is fitted to a speedup, so that differences come from the schedules.
"""

from dataclasses import replace

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.simulation.hardware import (
    H20,
    H800,
    INTRA_CLUSTER,
    MOONCAKE,
    QWEN3_8B,
    QWEN3_14B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN25_7B,
    Roofline,
    SimulatedModel,
)
from rollart_flow.simulation.latencies import FixedLatency, Gaussian, LogNormal
from rollart_flow.simulation.scenario import Dedicated, Pool, PrefillDecode, Scenario, Serverless
from rollart_flow.simulation.workloads import (
    FROZEN_LAKE,
    GEM_GAME,
    GEM_MATH,
    SWE,
    WEB,
    SimulatedDomain,
)

ROLLART = rollart(1).switched(overlapped=True)
"""Weights are published and fetched beside training (sections 6.2 and 6.3)."""

AFFINITY = {"frozenlake": "H800", "web": "H800", "swe": "H800", "default": "H20"}
"""Mathematical and game-oriented tasks on H20, prefill-heavy tasks on H800 (section 7.3)."""

_DEGREES = {QWEN3_8B: 1, QWEN3_14B: 2, QWEN3_32B: 4}
"""Tensor-parallel degree of the inference workers (section 7.1)."""

_JUDGE = Roofline(QWEN25_7B, H800)


def _mix(model: SimulatedModel) -> tuple[SimulatedDomain, ...]:
    """Tasks of Table 1; SWE-bench only for the largest model (section 7.1)."""
    tasks = (WEB, FROZEN_LAKE, GEM_MATH, GEM_GAME)
    return (*tasks, SWE) if model is QWEN3_32B else tasks


def _mixed(name: str, model: SimulatedModel, rollout: tuple[Pool, ...], train: int) -> Scenario:
    """A scenario of section 7.1; without rollout devices, the training devices serve as well."""
    return Scenario(
        f"{name} {model.name}",
        model,
        _mix(model),
        rollout,
        Pool(H800, train),
        batch_size=512,
        group_size=8,
        tensor_parallel=_DEGREES[model],
        reward=Serverless(_JUDGE),
        transfer=INTRA_CLUSTER,
        shared=not rollout,
    )


def monolithic(model: SimulatedModel, devices: int = 128) -> Scenario:
    """All H800 serve, then all train: Sync+ of section 7.1."""
    return _mixed(f"{devices} H800", model, (), devices)


def monolithic_judged_here(model: SimulatedModel) -> Scenario:
    """Sync of section 7.1: as Sync+, with four devices that only the judge uses."""
    scenario = monolithic(model)
    name = f"{scenario.name}, judge on 4"
    return replace(scenario, name=name, reward=Dedicated(_JUDGE, 4))


def disaggregated(model: SimulatedModel, devices: int = 128) -> Scenario:
    """A quarter of the H800 trains: One-off and AReaL of section 7.1, and Figure 10c."""
    train = devices // 4
    rollout = (Pool(H800, devices - train),)
    return _mixed(f"{devices - train}+{train} H800", model, rollout, train)


def affine(model: SimulatedModel) -> Scenario:
    """ROLLART of section 7.1: 64 H800 and 32 H20 serve, 32 H800 train, across two clusters."""
    rollout = (Pool(H800, 64), Pool(H20, 32))
    scenario = _mixed("64+32 H800 32 H20", model, rollout, 32)
    return replace(scenario, hw_affinity=AFFINITY, transfer=MOONCAKE)


def unbound(model: SimulatedModel) -> Scenario:
    """The devices of `affine`, each of which takes any task."""
    scenario = affine(model)
    return replace(scenario, name=f"{scenario.name}, any task", hw_affinity={})


def equal_cost(model: SimulatedModel, h800: int, h20: int) -> Scenario:
    """Figure 11a: rollout for about the same price, training on 32 H800."""
    pools = tuple(pool for pool in (Pool(H800, h800), Pool(H20, h20)) if pool.devices)
    scenario = _mixed(f"{h800} H800 {h20} H20", model, pools, 32)
    return replace(scenario, hw_affinity=AFFINITY if h800 and h20 else {})


def gaussian_environments(sigma: float) -> Scenario:
    """Figure 11b: each turn's environment takes a Gaussian of mean 10 s."""
    domain = replace(WEB, reset_s=FixedLatency(0.1), step_s=Gaussian(10.0, sigma), failure=0.0)
    scenario = monolithic(QWEN3_8B, 32)
    return replace(scenario, name=f"sigma {sigma:g}", domains=(domain,), batch_size=128)


def judged(*, serverless: bool) -> Scenario:
    """Figure 12: three jobs of 84 trajectories, 8 H800 train, 8 serve or 4 serve and 4 judge."""
    return Scenario(
        "judge serverless" if serverless else "judge on 4 H800",
        QWEN3_8B,
        (GEM_MATH,),
        (Pool(H800, 8 if serverless else 4),),
        Pool(H800, 8),
        batch_size=3 * 84,
        group_size=12,
        context_tokens=16_384,
        reward=Serverless(_JUDGE) if serverless else Dedicated(_JUDGE, 4),
        transfer=INTRA_CLUSTER,
    )


def redundant(groups: int, group_size: int, batch_groups: int, batch_size: int) -> Scenario:
    """Figure 14b: GEM-math with Qwen3-8B on 32 H800, with redundant groups and attempts."""
    scenario = monolithic(QWEN3_8B, 32)
    return replace(
        scenario,
        name=f"{groups}x{group_size} for {batch_size}",
        domains=(GEM_MATH,),
        batch_size=batch_size,
        group_size=batch_size // batch_groups,
        redundancy=group_size - batch_size // batch_groups,
        extra_groups=groups - batch_groups,
    )


def redundant_environments(groups: int, group_size: int) -> Scenario:
    """ROLL Flash Figure 10: 256 trajectories, environments of mean 10 s and sigma 5 s."""
    domain = replace(WEB, reset_s=FixedLatency(0.1), step_s=Gaussian(10.0, 5.0), failure=0.0)
    scenario = redundant(groups, group_size, batch_groups=32, batch_size=256)
    return replace(scenario, name=f"{scenario.name}, Gaussian", domains=(domain,))


_THOUGHT = SimulatedDomain(
    "dapo-math", turns=FixedLatency(1), prompt=LogNormal(300, 0.3, most=1_000),
    observation=FixedLatency(1), response=LogNormal(1_600, 0.7, most=16_000), solved=0.4,
)  # fmt: skip
"""DAPO-Math with Qwen3-8B-Base: 2,000 tokens on average (ROLL Flash section 3.2)."""


def filtered(extra_prompts: int) -> Scenario:
    """ROLL Flash Figure 7: 8 prompts of 8 responses, groups without variance are refused."""
    return Scenario(
        f"8x8 +{extra_prompts}",
        QWEN3_8B,
        (_THOUGHT,),
        (Pool(H800, 8),),
        Pool(H800, 8),
        batch_size=64,
        group_size=8,
        extra_groups=extra_prompts,
        transfer=INTRA_CLUSTER,
        zero_variance_filter=True,
    )


def replicated(prompts: int, responses: int) -> Scenario:
    """ROLL Flash Figure 8: `responses` responses to each of `prompts` prompts."""
    return Scenario(
        f"{prompts}x{responses}",
        QWEN3_8B,
        (_THOUGHT,),
        (Pool(H800, 8),),
        Pool(H800, 8),
        batch_size=prompts * responses,
        group_size=responses,
        transfer=INTRA_CLUSTER,
    )


def nodes(model: SimulatedModel, prefill: int, *, disaggregate: bool) -> Scenario:
    """Table 5: of four nodes of eight devices, `prefill` have H800, the others H20."""
    pools = Pool(H800, 8 * prefill), Pool(H20, 8 * (4 - prefill))
    parts = PrefillDecode(*pools, degree=8 if model is QWEN3_32B else 4)
    return Scenario(
        f"{prefill}P{4 - prefill}D {model.name}" + ("" if disaggregate else " colocated"),
        model,
        (SWE,),
        pools,
        Pool(H800, 32),
        batch_size=128,
        group_size=8,
        tensor_parallel=parts.degree,
        disaggregated=parts if disaggregate else None,
        transfer=INTRA_CLUSTER,
    )


MODELS = (QWEN3_8B, QWEN3_14B, QWEN3_32B)
MIXTURE_OF_EXPERTS = QWEN3_30B_A3B
