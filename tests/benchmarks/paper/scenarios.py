"""The configurations that ROLLART and ROLL Flash measured, named as the papers name them.

Hardware and sizes are the papers'; lengths, latencies and costs are those of a `Parameters`. The
invariant: nothing here is fitted to a speedup, so that differences come from the schedules.
"""

from dataclasses import replace

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.simulation.hardware import (
    H20,
    H800,
    QWEN3_8B,
    QWEN3_14B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN25_7B,
    Device,
    SimulatedModel,
)
from rollart_flow.simulation.latencies import FixedLatency, Gaussian
from rollart_flow.simulation.scenario import Dedicated, Pool, PrefillDecode, Scenario, Serverless
from rollart_flow.simulation.workloads import SimulatedDomain
from tests.benchmarks.paper.parameters import ASSUMED, Parameters

ROLLART = rollart(1).switched(overlapped=True)
"""Weights are published and fetched beside training (sections 6.2 and 6.3)."""

AFFINITY = {"frozenlake": "H800", "web": "H800", "swe": "H800", "default": "H20"}
"""Mathematical and game-oriented tasks on H20, prefill-heavy tasks on H800 (section 7.3)."""

THIRD = replace(
    H800,
    tflops=H800.tflops / 3,
    memory_gb=H800.memory_gb / 3,
    bandwidth_tb_s=H800.bandwidth_tb_s / 3,
    link_gb_s=H800.link_gb_s / 3,
)
"""What one of three jobs has of a device that they share."""

TRAINING = 32
"""H800 that are reserved for asynchronous training (section 7.1), also in smaller clusters."""

JUDGED_BATCH = 84
"""Trajectories of a batch of each job of Figure 12."""
JUDGED_ENVIRONMENTS = 126
"""Environments of each job of Figure 12, which is not published: with 84 its two times of a rollout
differ far less than the paper's, whatever lengths are assumed."""
JUDGED_STEPS = 34
"""Steps of Figure 12, two of which are not measured: over four, chance moves the mean by 15%."""

_DEGREES = {QWEN3_8B: 1, QWEN3_14B: 2, QWEN3_32B: 4, QWEN3_30B_A3B: 4}
"""Tensor-parallel degree of the inference workers (section 7.1); that of 30B-A3B is assumed."""


class Scenarios:
    """All configurations under one set of parameters."""

    def __init__(self, parameters: Parameters = ASSUMED) -> None:
        self.parameters = parameters
        judge = parameters.roofline(QWEN25_7B, H800)
        self._serverless = Serverless(judge, verdict_tokens=parameters.verdict_tokens)

    def priced(self, scenario: Scenario) -> Scenario:
        """A scenario with the engines and the training of the parameters."""
        given = self.parameters
        return replace(
            scenario,
            costs={
                name: given.cost(name, scenario.model, scenario.tensor_parallel)
                for name in scenario.classes
                if name in given.costs
            },
            training_cost=given.training(scenario.model, scenario.training.device),
            switch_s=given.switch_s,
        )

    def dedicated(self, device: Device = H800) -> Dedicated:
        """A judge on four devices that do nothing else."""
        given = self.parameters
        return Dedicated(given.roofline(QWEN25_7B, device), 4, given.verdict_tokens)

    def software(self, *, silent: bool = False) -> Scenario:
        """Figure 3: SWE-bench with Qwen3-8B on 32 H800, 128 trajectories; silent: of no replies."""
        scenario = self.monolithic(QWEN3_8B, 32)
        domain = replace(self.parameters.swe, failure=0.0)
        if silent:
            domain = replace(domain, response=FixedLatency(1))
        name = "swe on 32 H800" + (", silent" if silent else "")
        return replace(scenario, name=name, domains=(domain,), batch_size=128)

    def _mix(self, model: SimulatedModel) -> tuple[SimulatedDomain, ...]:
        """Tasks of Table 1; SWE-bench only for the largest model (section 7.1)."""
        given = self.parameters
        tasks = (given.web, given.frozen_lake, given.math, given.game)
        return (*tasks, given.swe) if model is QWEN3_32B else tasks

    def _mixed(
        self, name: str, model: SimulatedModel, rollout: tuple[Pool, ...], train: int
    ) -> Scenario:
        """A scenario of section 7.1; without rollout devices, training's serve as well."""
        return self.priced(
            Scenario(
                f"{name} {model.name}",
                model,
                self._mix(model),
                rollout,
                Pool(H800, train),
                batch_size=512,
                group_size=8,
                environments=2 * 512 if rollout else None,
                tensor_parallel=_DEGREES[model],
                reward=self._serverless,
                transfer=self.parameters.within,
                shared=not rollout,
            )
        )

    def monolithic(self, model: SimulatedModel, devices: int = 128) -> Scenario:
        """All H800 serve, then all train: Sync+ of section 7.1."""
        return self._mixed(f"{devices} H800", model, (), devices)

    def monolithic_judged_here(self, model: SimulatedModel) -> Scenario:
        """Sync of section 7.1: as Sync+, with four devices that only the judge uses."""
        scenario = self.monolithic(model)
        name = f"{scenario.name}, judge on 4"
        return replace(scenario, name=name, reward=self.dedicated())

    def disaggregated(self, model: SimulatedModel, devices: int = 128) -> Scenario:
        """H800 alone: One-off and AReaL of section 7.1, and Figure 10c."""
        rollout = (Pool(H800, devices - TRAINING),)
        return self._mixed(f"{devices - TRAINING}+{TRAINING} H800", model, rollout, TRAINING)

    def affine(self, model: SimulatedModel) -> Scenario:
        """ROLLART of section 7.1: 64 H800 and 32 H20 serve, 32 H800 train, across two clusters."""
        rollout = (Pool(H800, 64), Pool(H20, 32))
        scenario = self._mixed("64+32 H800 32 H20", model, rollout, TRAINING)
        return replace(scenario, hw_affinity=AFFINITY, transfer=self.parameters.across)

    def equal_cost(self, model: SimulatedModel, h800: int, h20: int) -> Scenario:
        """Figure 11a: rollout for about the same price, training on 32 H800."""
        pools = tuple(pool for pool in (Pool(H800, h800), Pool(H20, h20)) if pool.devices)
        scenario = self._mixed(f"{h800} H800 {h20} H20", model, pools, TRAINING)
        return replace(scenario, hw_affinity=AFFINITY if h800 and h20 else {})

    def gaussian_environments(self, sigma: float) -> Scenario:
        """Figure 11b: each turn's environment takes a Gaussian of mean 10 s."""
        domain = replace(
            self.parameters.web,
            reset_s=FixedLatency(0.1),
            step_s=Gaussian(10.0, sigma),
            failure=0.0,
        )
        scenario = self.monolithic(QWEN3_8B, 32)
        return replace(scenario, name=f"sigma {sigma:g}", domains=(domain,), batch_size=128)

    def judged(self, *, serverless: bool) -> Scenario:
        """Figure 12: one of three jobs of 84 trajectories, each on a third of every device: 8 H800
        train, 8 serve or 4 serve, 4 judge.

        The jobs have actors of their own, so that a device has room for three models and for a
        third of the KV caches beside each. Devices that are reserved for training are those of
        asynchronous training (section 7.1): the time of a rollout is the time in which as many
        trajectories end as a step takes. Beside the trajectories in flight, one to an environment,
        the buffer holds alpha times as many (section 6.2); alpha is 1.
        """
        surplus = 2 * (JUDGED_ENVIRONMENTS - JUDGED_BATCH)
        return self.priced(
            Scenario(
                "judge serverless" if serverless else "judge on 4 H800",
                QWEN3_8B,
                (self.parameters.math,),
                (Pool(THIRD, 8 if serverless else 4),),
                Pool(THIRD, 8),
                batch_size=JUDGED_BATCH,
                group_size=12,
                extra_groups=surplus // 12,
                environments=JUDGED_ENVIRONMENTS,
                context_tokens=16_384,
                reward=self._serverless if serverless else self.dedicated(THIRD),
                transfer=self.parameters.within,
            )
        )

    def redundant(
        self, groups: int, group_size: int, batch_groups: int, batch_size: int
    ) -> Scenario:
        """Figure 14b: GEM-math with Qwen3-8B on 32 H800, with redundant groups and attempts."""
        scenario = self.monolithic(QWEN3_8B, 32)
        return replace(
            scenario,
            name=f"{groups}x{group_size} for {batch_size}",
            domains=(self.parameters.math,),
            batch_size=batch_size,
            group_size=batch_size // batch_groups,
            redundancy=group_size - batch_size // batch_groups,
            extra_groups=groups - batch_groups,
        )

    def redundant_environments(self, groups: int, group_size: int) -> Scenario:
        """ROLL Flash Figure 10: 256 trajectories, environments of mean 10 s and sigma 5 s."""
        domain = replace(
            self.parameters.waiting,
            reset_s=FixedLatency(0.1),
            step_s=Gaussian(10.0, 5.0),
            failure=0.0,
        )
        scenario = self.redundant(groups, group_size, batch_groups=32, batch_size=256)
        name = f"{scenario.name}, Gaussian"
        return self.priced(replace(scenario, name=name, domains=(domain,)))

    def filtered(self, extra_prompts: int) -> Scenario:
        """ROLL Flash Figure 7: 8 prompts of 8 responses, groups without variance are refused.

        Appendix A.1 names 16 devices for inference.
        """
        return self.priced(
            Scenario(
                f"8x8 +{extra_prompts}",
                QWEN3_8B,
                (self.parameters.thought,),
                (Pool(H800, 16),),
                Pool(H800, 16),
                batch_size=64,
                group_size=8,
                extra_groups=extra_prompts,
                transfer=self.parameters.within,
                zero_variance_filter=True,
            )
        )

    def replicated(self, prompts: int, responses: int) -> Scenario:
        """ROLL Flash Figure 8: `responses` responses to each of `prompts` prompts.

        Appendix A.1 names 16 devices for inference.
        """
        return self.priced(
            Scenario(
                f"{prompts}x{responses}",
                QWEN3_8B,
                (self.parameters.thought,),
                (Pool(H800, 16),),
                Pool(H800, 16),
                batch_size=prompts * responses,
                group_size=responses,
                transfer=self.parameters.within,
            )
        )

    def nodes(self, model: SimulatedModel, prefill: int, *, disaggregate: bool) -> Scenario:
        """Table 5: of four nodes of eight devices, `prefill` have H800, the others H20.

        No environment fails: one slow launch takes longer than what the table compares, and its
        colocated times of 32B differ by 1%.
        """
        pools = Pool(H800, 8 * prefill), Pool(H20, 8 * (4 - prefill))
        parts = PrefillDecode(*pools, degree=_DEGREES[model])
        given = self.parameters
        domain = given.swe if model.active is None else given.swe_experts
        domain = replace(domain, reset_s=given.launch_s, failure=0.0)
        return self.priced(
            Scenario(
                f"{prefill}P{4 - prefill}D {model.name}" + ("" if disaggregate else " colocated"),
                model,
                (domain,),
                pools,
                Pool(H800, 32),
                batch_size=128,
                group_size=8,
                tensor_parallel=parts.degree,
                disaggregated=parts if disaggregate else None,
                transfer=given.within,
            )
        )


MODELS = (QWEN3_8B, QWEN3_14B, QWEN3_32B)
MIXTURE_OF_EXPERTS = QWEN3_30B_A3B
