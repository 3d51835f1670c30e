"""What the papers do not publish and the scenarios need: lengths, latencies, attained shares.

The invariant: everything that is assumed or fitted is in a value of `Parameters`, and nothing else
of a scenario is.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollart_flow.simulation.hardware import (
    INTRA_CLUSTER,
    MOONCAKE,
    VLLM_ON_H100,
    Device,
    EngineCosts,
    Roofline,
    SimulatedModel,
    TrainingCost,
    WeightTransfer,
)
from rollart_flow.simulation.latencies import Distribution, FixedLatency, LogNormal
from rollart_flow.simulation.workloads import (
    FROZEN_LAKE,
    GEM_GAME,
    GEM_MATH,
    SWE,
    WEB,
    SimulatedDomain,
)

THOUGHT = SimulatedDomain(
    "dapo-math", turns=FixedLatency(1), prompt=LogNormal(300, 0.3, most=1_000),
    observation=FixedLatency(1), response=LogNormal(1_600, 0.7, most=16_000), solved=0.4,
)  # fmt: skip
"""DAPO-Math with Qwen3-8B-Base: 2,000 tokens on average (ROLL Flash section 3.2)."""


@dataclass(frozen=True)
class Parameters:
    """Assumed or fitted numbers; the defaults are the assumed ones of `simulation`."""

    costs: Mapping[str, EngineCosts] = field(default_factory=dict, hash=False)
    """What engines attain, by class of devices; `EngineCosts()` for the others."""
    training_share: float = 0.35
    """Share of the peak arithmetic that training attains."""
    training_fixed_s: float = 5.0
    """Part of a training step that does not depend on tokens [s]."""
    switch_s: float = 40.0
    """Switching between serving and training, where they share devices [s]."""
    across: WeightTransfer = MOONCAKE
    within: WeightTransfer = INTRA_CLUSTER
    swe: SimulatedDomain = SWE
    web: SimulatedDomain = WEB
    frozen_lake: SimulatedDomain = FROZEN_LAKE
    math: SimulatedDomain = GEM_MATH
    game: SimulatedDomain = GEM_GAME
    thought: SimulatedDomain = THOUGHT
    waiting: SimulatedDomain = WEB
    """Lengths and turns of the task whose environments take Gaussian times."""

    def roofline(self, model: SimulatedModel, device: Device) -> Roofline:
        """One inference worker on one device."""
        return Roofline(model, device, costs=self.cost(device.name))

    def cost(self, device: str) -> EngineCosts:
        """What engines attain on a class of devices."""
        return self.costs.get(device, EngineCosts())

    def training(self, model: SimulatedModel, device: Device) -> TrainingCost:
        """Times of training steps."""
        return TrainingCost(model, device, self.training_share, self.training_fixed_s)


ASSUMED = Parameters()
"""Nothing is fitted: lengths and latencies of `simulation.workloads`."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that is fitted, with its bounds and the value that a search begins at."""

    start: float
    low: float
    high: float

    def at(self, share: float) -> float:
        """The value at a share of the range, evenly in logarithms."""
        return self.low * math.pow(self.high / self.low, share)


KNOBS = {
    "thought_response": Knob(1_400, 400, 6_400),
    "thought_sigma": Knob(0.35, 0.1, 1.2),
    "thought_spread": Knob(0.7, 0.1, 1.2),
    "thought_agreement": Knob(0.3, 0.05, 0.8),
    "math_response": Knob(1_000, 200, 6_000),
    "math_sigma": Knob(0.4, 0.1, 1.0),
    "wait_turns": Knob(3, 1, 16),
    "wait_sigma": Knob(0.8, 0.2, 1.6),
    "swe_response": Knob(250, 20, 1_000),
    "swe_sigma": Knob(0.25, 0.1, 1.0),
    "step_scale": Knob(0.1, 0.02, 2.0),
    "switch_s": Knob(40, 10, 120),
    "hop_s": Knob(30e-6, 5e-6, 300e-6),
    "copy_gib_s": Knob(6, 2, 48),
    "rdma_s_per_gib": Knob(0.1, 0.02, 0.4),
    "rdma_start_s": Knob(3, 0.1, 10),
}
"""Medians of lengths [tokens] and of turns, sigmas of logarithms, the share of tasks that all
attempts solve or none, the factor of all the times of steps of environments, the latency of an
all-reduce with the work of the engine to keep several devices in step [s], rates [GiB/s] and times
[s]."""

TRAINING_SHARE = 0.35 * 4 / 6
"""Share of the peak arithmetic that training attains, as if it were four forward passes (logprobs,
and a step of three). The papers' training makes six: it computes activations again in the backward
pass, assumed, and another reference model's logprobs (footnote 1 of ROLL Flash)."""

VLLM_VERSION = "0.20.2"
"""Version whose measurements `VLLM_ON_H100` is fitted to."""
STORED = Path(__file__).with_name("fitted.json")


def fitted(values: Mapping[str, float]) -> Parameters:
    """The parameters for values of the knobs; engines cost what was measured on an H100, but for
    the all-reduces of several devices.

    Kernels that wait for arithmetic come nearer to the peak of an H20, which has little; assumed.
    """
    scale, swe_sigma = values["step_scale"], values["swe_sigma"]
    engine = replace(VLLM_ON_H100, hop_s=values["hop_s"])
    swe = _paced(SWE, scale, LogNormal(values["swe_response"], swe_sigma, most=3_000))
    return Parameters(
        costs={"H800": engine, "H20": replace(engine, compute_share=0.8)},
        training_share=TRAINING_SHARE,
        switch_s=values["switch_s"],
        across=replace(MOONCAKE, copy_gib_s=values["copy_gib_s"], sharded=False),
        within=replace(
            INTRA_CLUSTER,
            pull_s_per_gib=values["rdma_s_per_gib"],
            start_s=values["rdma_start_s"],
        ),
        swe=replace(swe, task_spread=swe_sigma / 2),
        web=_paced(WEB, scale, WEB.response),
        math=_paced(
            GEM_MATH, scale, LogNormal(values["math_response"], values["math_sigma"], most=16_000)
        ),
        game=replace(GEM_GAME, response=LogNormal(2_200, values["math_sigma"], most=24_000)),
        thought=replace(
            THOUGHT,
            response=LogNormal(values["thought_response"], values["thought_sigma"], most=30_720),
            task_spread=values["thought_spread"],
            agreement=values["thought_agreement"],
        ),
        waiting=replace(WEB, turns=LogNormal(values["wait_turns"], values["wait_sigma"], most=30)),
    )


def _paced(domain: SimulatedDomain, scale: float, response: Distribution) -> SimulatedDomain:
    """A domain with other responses, and all times of steps multiplied."""
    step = domain.step_s
    if not isinstance(step, LogNormal):
        raise TypeError(f"steps of {domain.name} are no LogNormal")
    step = LogNormal(step.median * scale, step.sigma, step.most * scale)
    return replace(domain, response=response, step_s=step)


def stored_fit() -> Parameters:
    """The parameters of the latest fit that is stored."""
    return fitted(json.loads(STORED.read_text())["values"])
