"""What the papers do not publish and the scenarios need: lengths, latencies, attained shares.

The invariant: everything that is assumed or fitted is in a value of `Parameters`, and nothing else
of a scenario is.
"""

import json
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
    sequences: int = 256
    """Most sequences of a pass of ROLLART's engines."""
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
    """One number that is fitted, with its bounds."""

    start: float
    low: float
    high: float

    def grid(self) -> tuple[float, ...]:
        """Three values between the bounds, evenly in logarithms."""
        return tuple(self.low * (self.high / self.low) ** share for share in (0.2, 0.5, 0.8))


KNOBS = {
    "sequences": Knob(256, 8, 256),
    "math_response": Knob(800, 200, 6_000),
    "thought_response": Knob(1_600, 400, 6_400),
    "thought_sigma": Knob(0.7, 0.3, 1.5),
    "wait_turns": Knob(8, 1, 16),
    "wait_sigma": Knob(0.5, 0.2, 1.6),
    "swe_response": Knob(200, 20, 1_000),
    "step_scale": Knob(1.0, 0.02, 2.0),
    "switch_s": Knob(40, 10, 120),
    "copy_gib_s": Knob(12, 2, 48),
}
"""Medians [tokens, turns], sigmas of logarithms, most sequences of a pass, a time [s], a rate
[GiB/s], and the factor of all the times of steps of environments."""

STORED = Path(__file__).with_name("fitted.json")

_H20 = replace(VLLM_ON_H100, compute_share=0.8)
"""Kernels that wait for arithmetic come nearer to the peak of a device that has little; assumed."""


def fitted(values: Mapping[str, float]) -> Parameters:
    """The parameters for values of the knobs; engines cost what was measured on an H100."""
    scale = values["step_scale"]
    turns = LogNormal(values["wait_turns"], values["wait_sigma"], most=30)
    return Parameters(
        costs={"H800": VLLM_ON_H100, "H20": _H20},
        sequences=round(values["sequences"]),
        switch_s=values["switch_s"],
        across=replace(MOONCAKE, copy_gib_s=values["copy_gib_s"], sharded=False),
        swe=_paced(SWE, scale, LogNormal(values["swe_response"], 0.7, most=3_000)),
        web=_paced(WEB, scale, WEB.response),
        math=_paced(GEM_MATH, scale, LogNormal(values["math_response"], 0.8, most=16_000)),
        thought=replace(
            THOUGHT,
            response=LogNormal(values["thought_response"], values["thought_sigma"], most=30_720),
        ),
        waiting=replace(WEB, turns=turns),
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
