"""The functions that compose the producing side of a pipeline: tasks, rollout, filter, reward.

Every error is a `PipelineError` that starts with the node's name and says what to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rollart_flow.control.inference.profiler import AUTO
from rollart_flow.control.scheduler.curriculum import Curriculum
from rollart_flow.engines.registry import check_engine
from rollart_flow.envs.base import Domain
from rollart_flow.envs.registry import domains_of
from rollart_flow.errors import PipelineError
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline import nodes
from rollart_flow.pipeline.checks import (
    check_prefill,
    checked_node,
    expect,
    known_domains,
    stand_ins,
    unique_names,
)
from rollart_flow.pipeline.sources import read_source
from rollart_flow.rewards.base import RewardFunction

if TYPE_CHECKING:
    import polars as pl


@checked_node
def tasks(
    *sources: Any,
    domains: Iterable[Domain | str] = (),
    group_size: int = 8,
    seed: int = 0,
    weights: Mapping[str, float] | None = None,
    curriculum: Curriculum | None = None,
    name: str = "tasks",
) -> nodes.Tasks:
    """Groups of `group_size` attempts at tasks.

    Args:
        sources: each a `Domain` or its name such as "frozenlake(size=8)" (its own tasks), an
            iterable of `Task` or of mappings with task_id, domain and payload, or a
            `ray.data.Dataset` with these columns.
        domains: domains that run the tasks of datasets and iterables, if they are not among
            the sources.
        weights: relative share of the groups by domain; equal shares by default.
        curriculum: admits tasks by their recent solve rate; by default all tasks are admitted.

    Raises:
        PipelineError: no source is given, a source is of another kind, or a domain is unknown.
    """
    if not sources:
        raise PipelineError(f"{name}: no source; give a domain, a dataset or a list of tasks")
    sources = domains_of(sources)
    own = [source for source in sources if isinstance(source, Domain)]
    runs = (*own, *domains_of(domains))
    unique_names(name, runs)
    read = tuple(read_source(name, source) for source in sources)
    for source in read:
        if isinstance(source, tuple):
            known_domains(name, "a task", (task.domain for task in source), runs)
    if not runs:
        raise PipelineError(f"{name}: no domain runs these tasks; give domains=[...]")
    known_domains(name, "weights", weights or (), runs)
    return nodes.Tasks(
        sources=read,
        domains=runs,
        group_size=group_size,
        seed=seed,
        weights=dict(weights) if weights else None,
        curriculum=curriculum,
        name=name,
    )


@checked_node
def rollout(
    up: nodes.Tasks,
    policy: Policy,
    *,
    hw_affinity: Mapping[str, str | Sequence[str]] | Literal["auto"] | None = None,
    redundancy: int = 0,
    extra_groups: int = 0,
    max_replacements: int | None = None,
    step_timeout_s: float = 10.0,
    trajectory_timeout_s: float = 300.0,
    max_turns: int | None = None,
    max_concurrent: int | None = None,
    workers: int = 1,
    engine_workers: int = 1,
    sliding_workers: int = 0,
    prefill_workers: int = 0,
    prefill_affinity: str | None = None,
    engine_units: int = 1,
    engine_timeout_s: float = 60.0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_tokens: int = 16,
    name: str = "rollout",
) -> nodes.Rollout:
    """Attempts at tasks by a policy; the fields of `nodes.Rollout` document each setting.

    Raises:
        PipelineError: a setting is wrong, or `hw_affinity` names an unknown domain, no class, or
            different fallbacks for one class.
        MissingExtraError: a package that the policy's engine or prefill workers need is missing.
    """
    expect(name, up, nodes.Tasks)
    affinity: dict[str, str | tuple[str, ...]] | Literal["auto"]
    if isinstance(hw_affinity, str):
        if hw_affinity != AUTO:
            raise PipelineError(
                f"{name}: hw_affinity is {hw_affinity!r}, but takes a resource class by domain "
                f"or {AUTO!r}"
            )
        affinity = hw_affinity
    else:
        affinity = {
            domain: classes if isinstance(classes, str) else tuple(classes)
            for domain, classes in (hw_affinity or {}).items()
        }
        known_domains(name, "hw_affinity", affinity.keys() - {"default"}, up.domains)
    stand_ins(name, affinity)
    node = nodes.Rollout(
        up=up,
        policy=policy,
        hw_affinity=affinity,
        redundancy=redundancy,
        extra_groups=extra_groups,
        max_replacements=up.group_size if max_replacements is None else max_replacements,
        step_timeout_s=step_timeout_s,
        trajectory_timeout_s=trajectory_timeout_s,
        max_turns=max_turns,
        max_concurrent=max_concurrent,
        workers=workers,
        engine_workers=engine_workers,
        sliding_workers=sliding_workers,
        prefill_workers=prefill_workers,
        prefill_affinity=prefill_affinity,
        engine_units=engine_units,
        engine_timeout_s=engine_timeout_s,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        name=name,
    )
    check_prefill(node)
    check_engine(policy, units=engine_units, prefill_workers=prefill_workers)
    return node


@checked_node
def filter(up: nodes.Trajectories, expression: "pl.Expr", *, name: str = "filter") -> nodes.Filter:
    """Keep the trajectories for which a polars expression is true; each drop is recorded.

    The expression uses the columns of `trajectories` and gives one boolean a row; null drops the
    row. A filter may stand before reward, where the score columns are not known yet, or after it.
    An expression that compares the attempts of a group, with `.over("group_id")`, judges the
    members of each complete group: if it is not true for all of them, the whole group is evicted
    and another is admitted. `rollart_flow.algorithms.filters` has common filters.

    Raises:
        PipelineError: a column is unknown, the expression does not give a boolean for each row, or
            it compares attempts before reward or across groups.
    """
    from rollart_flow.pipeline.filters import check_expression

    expect(name, up, nodes.Rollout, nodes.Filter, nodes.Reward)
    check_expression(name, expression, scored=up.scored)
    return nodes.Filter(up=up, expression=expression, name=name)


@checked_node
def reward(
    up: nodes.Trajectories,
    fn: RewardFunction | str | None = None,
    *,
    timeout_s: float = 30.0,
    max_concurrent: int = 64,
    name: str = "reward",
) -> nodes.Reward:
    """Score trajectories: `fn(Trajectory) -> float | (float, parts)`, or the environment's own.

    Args:
        fn: a function, a `ServerlessReward`, or the URL of one, which is then called with this
            node's `timeout_s` as its deadline and `max_concurrent` as its limit.
        timeout_s: time limit of each call of `fn`, without the start of its process.
        max_concurrent: maximum number of concurrent calls.

    Raises:
        PipelineError: a setting is wrong, or the trajectories are scored already.
    """
    expect(name, up, nodes.Rollout, nodes.Filter)
    if up.scored:
        raise PipelineError(f"{name}: these trajectories are scored already; reward stands once")
    own = None if isinstance(fn, str) else fn
    node = nodes.Reward(
        up=up, fn=own, timeout_s=timeout_s, max_concurrent=max_concurrent, name=name
    )
    if not isinstance(fn, str):
        return node
    from rollart_flow.serverless import CallPolicy, ServerlessReward

    policy = CallPolicy(deadline_s=node.timeout_s, max_concurrent=node.max_concurrent)
    return replace(node, fn=ServerlessReward(fn, policy))
