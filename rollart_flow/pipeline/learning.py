"""The functions that compose the learning side of a pipeline: buffer, train and evaluate.

Every error is a `PipelineError` that starts with the node's name and says what to do.
"""

from pathlib import Path
from typing import cast

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import named_schedule, rollart
from rollart_flow.engines.registry import check_engine, engine_capabilities
from rollart_flow.envs.base import Domain
from rollart_flow.envs.registry import domains_of
from rollart_flow.errors import PipelineError
from rollart_flow.models.lora import Adapter
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline import nodes
from rollart_flow.pipeline.checks import checked_node, expect, unique_names
from rollart_flow.trainers.build import check_trainer
from rollart_flow.trainers.layout import COLLECTIVE_TIMEOUT_S
from rollart_flow.trainers.optimizer import AdamW, adamw
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.weights import check_weights
from rollart_flow.weights.transport import TransferEnds


def _bound(
    node: str, alpha: float | None, schedule: Schedule | str | None
) -> tuple[float, Schedule]:
    """Alpha and schedule; if only one is given, the other is derived from it."""
    if isinstance(schedule, str):
        schedule = named_schedule(schedule)
    if schedule is None:
        bound = 1.0 if alpha is None else alpha
        return bound, rollart(bound)
    of_schedule = getattr(schedule.bound, "alpha", None)
    if of_schedule is None:
        return 1.0 if alpha is None else alpha, schedule
    if alpha is not None and alpha != of_schedule:
        raise PipelineError(
            f"{node}: alpha {alpha:g} conflicts with the schedule's {of_schedule:g}; give one"
        )
    return of_schedule, schedule


@checked_node
def buffer(
    up: nodes.Trajectories,
    *,
    batch_size: int = 64,
    alpha: float | None = None,
    schedule: Schedule | str | None = None,
    commit_rows: int = 64,
    commit_ms: float = 50.0,
    name: str = "buffer",
) -> nodes.Buffer:
    """Commit scored trajectories and form batches that keep the bound on staleness.

    Args:
        batch_size: trajectories of one step; divisible by the group size.
        alpha: the bound [versions]; by default that of the schedule, or 1 (0 alternates rollout
            and training).
        schedule: how rollout and training interleave, as an object or by name: `rollart(alpha)` by
            default, which is `sync_plus()` for 0; "sync", "one_off", "areal(2)", "window(8)",
            "staged(8, 32, 16)", "hybrid", each with the switches queue_scheduling and
            prompt_replication: "sync_plus(queue_scheduling=False)". See
            `control.schedule.schedules`.

    Raises:
        PipelineError: a setting is wrong, or alpha and the schedule disagree.
    """
    expect(name, up, nodes.Reward, nodes.Filter)
    if not up.scored:
        raise PipelineError(f"{name}: unscored trajectories cannot be trained on; add reward(...)")
    group_size = up.tasks.group_size
    if batch_size % group_size:
        raise PipelineError(
            f"{name}: batch_size {batch_size} is not divisible by group_size {group_size}; "
            f"take {-(-batch_size // group_size) * group_size}"
        )
    bound, schedule = _bound(name, alpha, schedule)
    if up.tasks.curriculum is not None and schedule.order_checks:
        raise PipelineError(
            f"{name}: schedule {schedule.name} keeps to the order of tasks, of which a curriculum "
            "skips some; leave one of them away"
        )
    return nodes.Buffer(
        up=up,
        batch_size=batch_size,
        alpha=bound,
        schedule=schedule,
        commit_rows=commit_rows,
        commit_ms=commit_ms,
        name=name,
    )


def _transfer_ends(up: nodes.Buffer, policy: Policy, ranks: int) -> TransferEnds:
    """The trainer and the engines between which weights travel."""
    node: nodes.Node = up
    while not isinstance(node, nodes.Rollout):
        (node,) = node.upstream
    names = () if isinstance(node.hw_affinity, str) else node.up.domain_names
    classes = frozenset(node.resource_class(name) for name in names)
    receives = engine_capabilities(policy).receives_weights
    return TransferEnds(policy.engine, receives, classes, node.sliding_workers, ranks)


@checked_node
def train(
    up: nodes.Buffer,
    policy: Policy,
    algorithm: Algorithm,
    *,
    steps: int,
    optimizer: AdamW | None = None,
    minibatches: int = 1,
    epochs: int = 1,
    micro_batch_tokens: int = 16384,
    threads: int = 1,
    mismatch: bool = False,
    checkpoint_every: int = 10,
    keep_versions: int = 4,
    backend: str = "embedded",
    ranks: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    sequence_parallel: bool = False,
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S,
    weights: str = "local",
    name: str = "train",
) -> nodes.Train:
    """Train the policy for `steps` steps; the fields of `nodes.Train` document each setting.

    Raises:
        PipelineError: a setting is wrong, or the policy is not the one that rolls out.
        MissingExtraError: the weight store needs a package that is not installed.
    """
    expect(name, up, nodes.Buffer)
    check_weights(weights, _transfer_ends(up, policy, ranks))
    if minibatches > up.batch_size:
        raise PipelineError(
            f"{name}: {minibatches} minibatches of a batch of {up.batch_size}; take fewer"
        )
    node = nodes.Train(
        up=up,
        policy=policy,
        algorithm=algorithm,
        steps=steps,
        optimizer=adamw() if optimizer is None else optimizer,
        minibatches=minibatches,
        epochs=epochs,
        micro_batch_tokens=micro_batch_tokens,
        threads=threads,
        mismatch=mismatch,
        checkpoint_every=checkpoint_every,
        keep_versions=keep_versions,
        backend=backend,
        ranks=ranks,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        sequence_parallel=sequence_parallel,
        collective_timeout_s=collective_timeout_s,
        weights=weights,
        name=name,
    )
    check_trainer(
        policy,
        TrainerSettings(
            backend=backend,
            ranks=ranks,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            sequence_parallel=sequence_parallel,
        ),
    )
    return node


@checked_node
def evaluate(
    policy: Policy,
    *domains: Domain | str,
    every: int = 10,
    episodes: int = 64,
    seed: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_tokens: int = 16,
    max_turns: int | None = None,
    step_timeout_s: float = 10.0,
    trajectory_timeout_s: float = 300.0,
    lora: str | Path | Adapter | None = None,
    name: str = "evaluate",
) -> nodes.Evaluate:
    """Measure the policy in domains as it learns, without using the credits of rollout.

    Args:
        domains: each a `Domain` or its name such as "frozenlake(size=8)".
        lora: folder of a LoRA adapter in PEFT's format that is applied to every measured version,
            as in serving the trained policy with it. The run keeps a copy. Rollout and training
            do not use adapters, because tokens sampled with an adapter would not be those of the
            policy that is trained on them.

    Raises:
        PipelineError: a setting is wrong, no domain is given, or two have the same name; the
            engine takes no adapter, or the folder holds none.
        MissingExtraError: an adapter needs an engine that is not installed.
    """
    measured = domains_of(domains)
    for domain in measured:
        if not isinstance(domain, Domain):
            raise PipelineError(f"{name}: takes domains, got {domain!r}")
    unique_names(name, measured)
    if lora is not None:
        check_engine(policy, adapted=True)
    return nodes.Evaluate(
        policy=policy,
        domains=measured,
        every=every,
        episodes=episodes,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        max_turns=max_turns,
        step_timeout_s=step_timeout_s,
        trajectory_timeout_s=trajectory_timeout_s,
        lora=cast("Adapter | None", lora),  # which reads the folder
        name=name,
    )
