"""The configurations of ROLL Flash that ROLLART's do not contain, named as the paper names them."""

from dataclasses import replace

from rollart_flow.control.schedule.schedules import flash
from rollart_flow.simulation.hardware import H800, QWEN3_8B, QWEN3_14B, SimulatedModel
from rollart_flow.simulation.latencies import Gaussian
from rollart_flow.simulation.report.comparison import Case
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
CYCLES = 30
"""Steps that are measured, of synchronous runs too: whole cycles for the ratios 1, 2 and 4."""
ROLLOUTS = 256
"""Size of a rollout (section 3.2)."""


def asynchronous(scenario: Scenario, alpha: int, steps: int = CYCLES) -> Case:
    """A run of ROLL Flash with an asynchronous ratio, measured after its first 2 (1 + alpha) steps.

    No sample is wasted (section 4.3), so that batches wait for those that would become too old:
    steps repeat in cycles of 1 + alpha, of which a whole number is measured.

    Args:
        steps: steps that are measured.
    """
    first = 2 * (1 + alpha)
    return Case(scenario, flash(alpha), steps=first + steps, warmup=first)


def thoughts(
    given: Scenarios,
    domain: SimulatedDomain,
    *,
    train: int,
    infer: int,
    rollouts: int = ROLLOUTS,
    model: SimulatedModel = QWEN3_8B,
    context: int = 32_768,
) -> Scenario:
    """Section 3.2: mathematics in one turn; without devices to infer, all take turns.

    Args:
        rollouts: responses of a batch.
    """
    name = f"{domain.name} {train}Train{infer}Infer, {rollouts}, {model.name}, {context}"
    return given.priced(
        Scenario(
            name,
            model,
            (domain,),
            (Pool(H800, infer),) if infer else (),
            Pool(H800, train),
            batch_size=rollouts,
            group_size=RESPONSES,
            context_tokens=context,
            transfer=given.parameters.within,
            shared=not infer,
        )
    )


def agents(given: Scenarios, name: str, *, apart: bool, redundant: bool) -> Scenario:
    """Figure 11: 128 trajectories of SWE or ALFWorld on 64 devices, 32 of which train if apart."""
    software = name == "SWE"
    domain = (
        replace(given.parameters.swe, name="r2e-gym") if software else given.parameters.alfworld
    )
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
