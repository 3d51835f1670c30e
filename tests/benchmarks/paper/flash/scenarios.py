"""The configurations of ROLL Flash that ROLLART's do not contain, named as the paper names them."""

from dataclasses import replace

from rollart_flow.simulation.hardware import H800, QWEN3_8B, QWEN3_14B, SimulatedModel
from rollart_flow.simulation.latencies import FixedLatency, Gaussian, LogNormal, Uniform
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import SimulatedDomain
from tests.benchmarks.paper.scenarios import Scenarios

QWEN3_06B = SimulatedModel("Qwen3-0.6B", 0.6e9, 28, 1024, 2048, 1024)
QWEN3_17B = SimulatedModel("Qwen3-1.7B", 1.72e9, 28, 2048, 2048, 1024)
QWEN3_4B = SimulatedModel("Qwen3-4B", 4.02e9, 36, 2560, 4096, 1024)
SIZES = (QWEN3_06B, QWEN3_17B, QWEN3_4B, QWEN3_8B)
"""The models of Table 1 (published configurations)."""

RESPONSES = 16
"""Responses to a prompt (appendix A.1)."""

THINK = SimulatedDomain(
    "dapo-math-think", turns=FixedLatency(1), prompt=LogNormal(300, 0.3, most=1_000),
    observation=FixedLatency(1), response=LogNormal(9_500, 0.6, most=30_720), solved=0.6,
)  # fmt: skip
"""DAPO-Math with Qwen3-8B-Think: 11,000 tokens on average, at most 30,720 (section 3.2, A.1)."""

ALFWORLD = SimulatedDomain(
    "alfworld", turns=Uniform(8, 30), prompt=LogNormal(700, 0.3, most=2_000),
    observation=LogNormal(60, 0.6, most=600), response=LogNormal(150, 0.8, most=4_096),
    reset_s=LogNormal(5.0, 0.8, most=120), step_s=LogNormal(1.0, 1.2, most=120),
)  # fmt: skip
"""At most 30 turns of at most 4,096 new tokens (A.2); lengths and latencies are assumed, with the
tail that section 5.2 describes: seconds mostly, and minutes sometimes."""


def thoughts(
    given: Scenarios,
    domain: SimulatedDomain,
    *,
    train: int,
    infer: int,
    prompts: int = 256,
    model: SimulatedModel = QWEN3_8B,
    context: int = 32_768,
) -> Scenario:
    """Section 3.2: mathematics in one turn; without devices to infer, all take turns."""
    name = f"{domain.name} {train}Train{infer}Infer, {prompts} prompts, {model.name}, {context}"
    return given.priced(
        Scenario(
            name,
            model,
            (domain,),
            (Pool(H800, infer),) if infer else (),
            Pool(H800, train),
            batch_size=prompts * RESPONSES,
            group_size=RESPONSES,
            context_tokens=context,
            transfer=given.parameters.within,
            shared=not infer,
        )
    )


def agents(given: Scenarios, name: str, *, apart: bool, redundant: bool) -> Scenario:
    """Figure 11: 128 trajectories of SWE or ALFWorld on 64 devices, 32 of which train if apart."""
    software = name == "SWE"
    domain = replace(given.parameters.swe, name="r2e-gym") if software else ALFWORLD
    scenario = Scenario(
        f"{name} on {'32+32' if apart else '64'}{', redundant' if redundant else ''}",
        QWEN3_14B if software else QWEN3_8B,
        (domain,),
        (Pool(H800, 32),) if apart else (),
        Pool(H800, 32 if apart else 64),
        batch_size=128,
        group_size=16,
        environments=9 * 17 if redundant else 8 * 16,
        tensor_parallel=2 if software else 1,
        redundancy=1 if redundant else 0,
        extra_groups=1 if redundant else 0,
        transfer=given.parameters.within,
        shared=not apart,
    )
    return given.priced(scenario)


def waiting(given: Scenarios, sigma: float) -> Scenario:
    """Figure 9: environments of mean 10 s; the rest of its setup is Figure 10's without surplus."""
    scenario = given.redundant_environments(32, 8)
    (domain,) = scenario.domains
    domain = replace(domain, step_s=Gaussian(10.0, sigma))
    return replace(scenario, name=f"{scenario.name}, sigma {sigma:g}", domains=(domain,))
