"""Demand of a pipeline on hardware: its model, its attempts and their limits.

The invariant: whatever is neither in the pipeline nor in a stored run is listed in `assumptions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.graph import Graph
from rollart_flow.simulation.hardware import SimulatedModel
from rollart_flow.simulation.latencies import FixedLatency, Uniform
from rollart_flow.simulation.measured import RecordedGroup, RecordedWorkload
from rollart_flow.simulation.planning.shapes import shape_of
from rollart_flow.simulation.scenario import RULE_S
from rollart_flow.simulation.stored.recorded import Recorded
from rollart_flow.simulation.workloads import Script, SimulatedDomain, Workload

_INLINE_S, _PROCESS_S = 0.001, 0.5
"""Assumed time of a step of an environment in the event loop, and of one in a process [s]."""
_RESET = 2.0
"""Assumed time of a reset, in steps."""
_SEEN = 0.5
"""Assumed share, for observations, of what actions leave of the context: at least a quarter of it
is taken to be left."""
_OF_EACH = 4
"""Attempts at each task that stand for all."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of a pipeline."""

    model: SimulatedModel
    domains: tuple[SimulatedDomain, ...]
    groups: tuple[RecordedGroup, ...]
    """Groups of a stored run, in place of `domains`; empty without one."""
    recorded: Recorded | None
    """The stored run."""
    context_tokens: int
    score_s: float
    """Time of a reward [s]."""
    trained_bytes: float
    """Memory of weights, gradients and optimizer over all ranks [bytes]."""
    epochs: int
    assumptions: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the domains, each once."""
        every = [group.domain for group in self.groups] or [each.name for each in self.domains]
        return tuple(dict.fromkeys(every))

    def scripts(
        self, seed: int, attempts: int, domain: str | None = None
    ) -> list[tuple[str, Script]]:
        """So many attempts, each with its domain, as a run of this seed meets them.

        Args:
            domain: the only domain of the attempts; None: all, by their shares.
        """
        groups = [group for group in self.groups if domain in (None, group.domain)]
        domains = tuple(each for each in self.domains if domain in (None, each.name))
        workload = (
            RecordedWorkload(groups, seed)
            if groups
            else Workload(domains, seed, self.context_tokens)
        )
        found: list[tuple[str, Script]] = []
        for task, cursor in workload.tasks():
            names = range(_OF_EACH)
            found += [(task.domain, workload.script(f"g{cursor}", task.domain, n)) for n in names]
            if len(found) >= attempts:
                break
        return found


def demand_of(pipeline: Graph, recorded: Recorded | None = None) -> Demand:
    """Return the work of a pipeline, with attempts of a stored run if there is one.

    Raises:
        SettingsError: a size of the model is not known; the program of an agent works in a domain
            and no run shows for how long; the run has no attempt in a domain.
    """
    train, policy = pipeline.train, pipeline.policy
    model = shape_of(policy)
    domains: tuple[SimulatedDomain, ...] = ()
    groups: tuple[RecordedGroup, ...] = ()
    said: list[str] = []
    score_s = RULE_S
    if recorded is None:
        domains = tuple(_assumed(pipeline, domain, said) for domain in pipeline.tasks.domains)
        said.append(f"a reward takes {RULE_S:g} s, and no attempt fails")
    else:
        groups = _groups(pipeline, recorded)
        measured = recorded.scenario.measured
        assert measured is not None, "of a stored run"
        score_s = measured.scored_s
    weights = 4.0 if train.lora_rank else 16.0
    return Demand(
        model=model,
        domains=domains,
        groups=groups,
        recorded=recorded,
        context_tokens=policy.max_context,
        score_s=score_s,
        trained_bytes=weights * model.parameters,
        epochs=train.epochs,
        assumptions=tuple(said),
    )


def _groups(pipeline: Graph, recorded: Recorded) -> tuple[RecordedGroup, ...]:
    measured = recorded.scenario.measured
    assert measured is not None, "of a stored run"
    names = pipeline.tasks.domain_names
    groups = tuple(group for group in measured.groups if group.domain in names)
    if missing := [name for name in names if all(name != group.domain for group in groups)]:
        raise SettingsError(
            f"run {recorded.scenario.name} has no attempt in {missing[0]} that ended by itself; "
            "leave --from away, or name a run that has"
        )
    return groups


def _assumed(pipeline: Graph, domain: Domain, said: list[str]) -> SimulatedDomain:
    """A domain by the limits of the pipeline alone; appends to `said` what is assumed."""
    rollout, policy = pipeline.rollout, pipeline.policy
    if rollout.agent_in(domain.name) is not None:
        raise SettingsError(
            f"how long the agent of {domain.name} works is in no setting; run the pipeline for a "
            "few steps and give that run with --from"
        )
    turns, context = rollout.turns(domain), policy.max_context
    action = min(rollout.sampling_in(domain.name).max_tokens, context - 1)
    free = max(context / 4, context - turns * action / 2)
    seen = max(1.0, _SEEN * free / (turns + 1))
    step_s = _INLINE_S if domain.environment.inline else _PROCESS_S
    said.append(
        f"{domain.name}: 1 to {turns} turns, each with 1 to {action} tokens of action, "
        f"{seen:.0f} of observation and {step_s:g} s of environment"
    )
    return SimulatedDomain(
        domain.name,
        turns=Uniform(1, turns),
        prompt=FixedLatency(2 * seen),
        observation=FixedLatency(seen),
        response=Uniform(1, action),
        reset_s=FixedLatency(_RESET * step_s),
        step_s=FixedLatency(step_s),
        share=(pipeline.tasks.weights or {}).get(domain.name, 1.0),
    )


def mean_turns(scripts: Sequence[tuple[str, Script]]) -> float:
    """Mean number of turns of an attempt."""
    return sum(len(script.turns) for _, script in scripts) / len(scripts)
