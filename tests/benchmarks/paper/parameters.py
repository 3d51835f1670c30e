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
    VLLM_ON_H100,
    Device,
    EngineCosts,
    Roofline,
    SimulatedModel,
    TrainingCost,
)
from rollart_flow.simulation.latencies import (
    Distribution,
    FixedLatency,
    LatencyMixture,
    LogNormal,
    Uniform,
)
from rollart_flow.simulation.transfers import INTRA_CLUSTER, MOONCAKE, WeightTransfer
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

THINK = SimulatedDomain(
    "dapo-math-think", turns=FixedLatency(1), prompt=LogNormal(300, 0.3, most=1_000),
    observation=FixedLatency(1), response=LogNormal(9_500, 0.6, most=30_720), solved=0.6,
)  # fmt: skip
"""DAPO-Math with Qwen3-8B-Think: 11,000 tokens on average, at most 30,720 (ROLL Flash section 3.2
and A.1); the spread is assumed."""

ALFWORLD = SimulatedDomain(
    "alfworld", turns=Uniform(8, 30), prompt=LogNormal(700, 0.3, most=2_000),
    observation=LogNormal(60, 0.6, most=600), response=LogNormal(150, 0.8, most=4_096),
    reset_s=LogNormal(5.0, 0.8, most=120), step_s=LogNormal(1.0, 1.2, most=120),
)  # fmt: skip
"""At most 30 turns of at most 4,096 new tokens (ROLL Flash A.2); lengths and latencies are assumed,
with the tail that section 5.2 describes: seconds mostly, and minutes sometimes."""

_LAUNCH, _SLOW_LAUNCH = LogNormal(22.0, 0.45, most=120), Uniform(150, 400)
"""A launch of a container, and one that takes hundreds of seconds (ROLLART section 3.1)."""


@dataclass(frozen=True)
class Parameters:
    """Assumed or fitted numbers; the defaults are the assumed ones of `simulation`."""

    costs: Mapping[str, EngineCosts] = field(default_factory=dict, hash=False)
    """What engines attain, by class of devices; `EngineCosts()` for the others."""
    several_s: float = 0.0
    """What an engine does for each pass to keep four devices in step [s]; half of it for two, half
    as much again for eight, as messages along a tree take."""
    training_share: float = 0.35
    """Share of the peak arithmetic that training attains."""
    training_fixed_s: float = 5.0
    """Part of a training step that does not depend on tokens [s]."""
    switch_s: float = 40.0
    """Switching between serving and training, where they share devices [s]."""
    across: WeightTransfer = MOONCAKE
    within: WeightTransfer = INTRA_CLUSTER
    swe: SimulatedDomain = SWE
    swe_experts: SimulatedDomain = SWE
    """SWE-bench with Qwen3-30B-A3B, whose trajectories need not be as long as those of 32B."""
    experts_share: float = 1.0
    """Arithmetic that kernels and training of a mixture of experts attain, over dense ones."""
    verdict_tokens: int = 16
    """Length of a judge's answer."""
    launch_s: Distribution = _LAUNCH
    """Launch of a container of SWE-bench [s]."""
    slow_launch_s: Distribution = _SLOW_LAUNCH
    """Launch where environments fail [s]."""
    web: SimulatedDomain = WEB
    frozen_lake: SimulatedDomain = FROZEN_LAKE
    math: SimulatedDomain = GEM_MATH
    game: SimulatedDomain = GEM_GAME
    alfworld: SimulatedDomain = ALFWORLD
    thought: SimulatedDomain = THOUGHT
    think: SimulatedDomain = THINK
    waiting: SimulatedDomain = WEB
    """Lengths and turns of the task whose environments take Gaussian times."""

    def roofline(self, model: SimulatedModel, device: Device) -> Roofline:
        """One inference worker on one device."""
        return Roofline(model, device, costs=self.cost(device.name, model, 1))

    def cost(self, device: str, model: SimulatedModel, degree: int) -> EngineCosts:
        """What an engine with a model attains on `degree` devices of a class.

        Several devices cost more for each pass, by the logarithm of their number; the kernels of
        experts, which get few tokens each, attain `experts_share` of the arithmetic of dense ones.
        """
        if (costs := self.costs.get(device)) is None:
            return EngineCosts()
        share = self._of_dense(model)
        several_s = self.several_s * math.log2(degree) / 2
        return replace(
            costs, compute_share=share * costs.compute_share, pass_s=costs.pass_s + several_s
        )

    def training(self, model: SimulatedModel, device: Device) -> TrainingCost:
        """Times of training steps."""
        share = self._of_dense(model) * self.training_share
        return TrainingCost(model, device, share, self.training_fixed_s)

    def _of_dense(self, model: SimulatedModel) -> float:
        """The share of a dense model's arithmetic that a model attains."""
        return 1.0 if model.active is None else self.experts_share


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

    def share(self, value: float) -> float:
        """The share of the range that a value lies at, within the bounds."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(1.0, max(0.0, share))


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
    "swe_experts": Knob(0.8, 0.2, 1.2),
    "launch_s": Knob(22, 8, 40),
    "slow_launch_s": Knob(400, 200, 600),
    "step_scale": Knob(0.1, 0.02, 2.0),
    "training_share": Knob(0.3, 0.1, 0.5),
    "pass_s": Knob(3e-3, 1.44e-3, 10e-3),
    "sequence_s": Knob(1e-4, 14.5e-6, 5e-4),
    "several_s": Knob(10e-3, 1e-3, 60e-3),
    "cached_share": Knob(0.98, 0.8, 1.0),
    "verdict_tokens": Knob(16, 1, 64),
    "pull_s_per_gib": Knob(0.49, 0.2, 1.0),
    "several_pull": Knob(1.3, 1.0, 3.0),
    "copy_gib_s": Knob(12, 2, 48),
    "several_copy": Knob(1.3, 1.0, 4.0),
    "rdma_s_per_gib": Knob(0.1, 0.02, 0.4),
    "rdma_start_s": Knob(3, 0.1, 10),
}
"""Medians of lengths [tokens] and of turns, sigmas of logarithms, the share of tasks that all
attempts solve or none, the length of responses of 30B-A3B over those of 32B, the factor of all the
times of steps of environments, the share of the peak that training attains, what an engine does for
each pass, for each sequence in it, and for each pass to keep four devices in step [s], the share
of a trajectory's cached tokens that its next prompt can use, the length of a judge's answer
[tokens], rates [GiB/s], times [s], and what a byte takes longer to a worker of several devices.

The papers' engines are vLLM 0.8.4 (ROLLART section 7.1, ROLL Flash appendix A.1), which did more of
its work between passes: that of `VLLM_ON_H100` is the least of both knobs."""

FORWARD_PASSES = 6
"""Work of the papers' training, in forward passes: logprobs, a step of three, activations that are
computed again in the backward pass, assumed, and another reference model's logprobs (footnote 1 of
ROLL Flash). `TrainingCost` counts the first four."""
SWITCH_S = 13.0
"""Switching between serving and training [s], as others measured it where both share devices: 13.3
s with Qwen3-VL-4B on four devices (github.com/redai-studio/Relax, issue 169), 11.3 s with
Qwen3-0.6B on one (github.com/vllm-project/vime, issue 442), of which most does not depend on the
size."""
MEMORY_SHARE = 0.8
"""Memory that weights and KV caches may take, as ROLL's documentation and its example for RLVR set
it (alibaba.github.io/ROLL/docs/UserGuide/backend/vllm)."""
EXPERTS_SHARE = 0.33
"""Assumed: a prompt of 480 tokens gives each of 128 experts 30 of them, where a tile has 64."""

VLLM_VERSION = "0.20.2"
"""Version whose measurements `VLLM_ON_H100` is fitted to."""
STORED = Path(__file__).with_name("fitted.json")


_LONG_OUTPUTS = LogNormal(440, 0.8, most=3_000)
_LONG_PAGES = LogNormal(1_300, 0.5, most=6_000)
_LONG_GRIDS = LogNormal(420, 0.2, most=2_000)
"""Observations with which the longest trajectories of SWE-bench, WebShop and FrozenLake fill the
context of 32,768 tokens (sections 3.1 and 7.1); assumed."""


def fitted(values: Mapping[str, float]) -> Parameters:
    """The parameters for values of the knobs; engines cost what was measured on an H100, but for
    their work beside the kernels.

    Kernels that wait for arithmetic come nearer to the peak of an H20, which has little; assumed.
    """
    engine = replace(
        VLLM_ON_H100,
        pass_s=values["pass_s"],
        sequence_s=values["sequence_s"],
        memory_share=MEMORY_SHARE,
    )
    swe, response = _software(values), values["swe_response"] * values["swe_experts"]
    math_sigma = values["math_sigma"]
    return Parameters(
        costs={"H800": engine, "H20": replace(engine, compute_share=0.8)},
        several_s=values["several_s"],
        training_share=values["training_share"] * 4 / FORWARD_PASSES,
        switch_s=SWITCH_S,
        across=replace(
            MOONCAKE,
            pull_s_per_gib=values["pull_s_per_gib"],
            several_pull=values["several_pull"],
            copy_gib_s=values["copy_gib_s"],
            several_copy=values["several_copy"],
            sharded=False,
        ),
        within=replace(
            INTRA_CLUSTER,
            pull_s_per_gib=values["rdma_s_per_gib"],
            start_s=values["rdma_start_s"],
        ),
        swe=swe,
        swe_experts=replace(swe, response=LogNormal(response, values["swe_sigma"], most=3_000)),
        experts_share=EXPERTS_SHARE,
        verdict_tokens=round(values["verdict_tokens"]),
        launch_s=_launch(values),
        slow_launch_s=Uniform(150, values["slow_launch_s"]),
        web=replace(_as_software(WEB, values), observation=_LONG_PAGES),
        frozen_lake=replace(_as_software(FROZEN_LAKE, values), observation=_LONG_GRIDS),
        alfworld=_as_software(ALFWORLD, values, values["swe_response"]),
        math=_paced(GEM_MATH, values, LogNormal(values["math_response"], math_sigma, most=16_000)),
        game=replace(GEM_GAME, response=LogNormal(3_800, math_sigma, most=24_000)),
        thought=replace(
            THOUGHT,
            response=LogNormal(values["thought_response"], values["thought_sigma"], most=30_720),
            task_spread=values["thought_spread"],
            agreement=values["thought_agreement"],
        ),
        think=_alike(THINK, values["thought_sigma"]),
        waiting=replace(
            WEB,
            turns=LogNormal(values["wait_turns"], values["wait_sigma"], most=30),
            cached_share=values["cached_share"],
        ),
    )


def _alike(domain: SimulatedDomain, sigma: float) -> SimulatedDomain:
    """A domain whose responses to one task spread as given at most, and all of them as before."""
    response = domain.response
    if not isinstance(response, LogNormal):
        raise TypeError(f"responses of {domain.name} are no LogNormal")
    whole = math.hypot(response.sigma, domain.task_spread)
    within = min(sigma, whole)
    return replace(
        domain,
        response=LogNormal(response.median, within, most=response.most),
        task_spread=math.sqrt(whole**2 - within**2),
    )


def _launch(values: Mapping[str, float]) -> LogNormal:
    return LogNormal(values["launch_s"], 0.45, most=120)


def _software(values: Mapping[str, float]) -> SimulatedDomain:
    """SWE-bench; about one of ten steps of 128 attempts has a slow launch (ROLLART section 3.1)."""
    slow = Uniform(150, values["slow_launch_s"])
    return replace(
        _as_software(SWE, values, values["swe_response"]),
        observation=_LONG_OUTPUTS,
        reset_s=LatencyMixture(((0.9992, _launch(values)), (0.0008, slow))),
    )


def _as_software(
    domain: SimulatedDomain, values: Mapping[str, float], median: float | None = None
) -> SimulatedDomain:
    """A domain of many turns whose responses spread as those of SWE-bench, with its pace."""
    response, sigma = domain.response, values["swe_sigma"]
    if not isinstance(response, LogNormal):
        raise TypeError(f"responses of {domain.name} are no LogNormal")
    response = LogNormal(median or response.median, sigma, most=response.most)
    return replace(_paced(domain, values, response), task_spread=sigma / 2)


def _paced(
    domain: SimulatedDomain, values: Mapping[str, float], response: Distribution
) -> SimulatedDomain:
    """A domain with other responses, all times of steps multiplied, and cached prefixes that its
    prompts find in part."""
    step, scale = domain.step_s, values["step_scale"]
    if not isinstance(step, LogNormal):
        raise TypeError(f"steps of {domain.name} are no LogNormal")
    step = LogNormal(step.median * scale, step.sigma, step.most * scale)
    share = values["cached_share"]
    return replace(domain, response=response, step_s=step, cached_share=share)


def stored_fit() -> Parameters:
    """The parameters of the latest fit that is stored."""
    return fitted(json.loads(STORED.read_text())["values"])
