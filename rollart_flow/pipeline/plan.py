"""Plans: the stages of a pipeline, their operators and the resources that they request.

A plan is made from settings alone. The classes that a cluster has are known only when it runs, and
the granted ones are recorded in `bindings`; the plan shows the fallback on a machine without GPUs.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rollart_flow.harness.harness import Harness
from rollart_flow.pipeline.buffering import Buffer, Mix
from rollart_flow.pipeline.described import describe
from rollart_flow.pipeline.filters import Filter
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.learning import Evaluate, Train
from rollart_flow.pipeline.node import Node
from rollart_flow.pipeline.producing import Rollout, Tasks, Trajectories
from rollart_flow.pipeline.scoring import Reward
from rollart_flow.pipeline.stored import Stored
from rollart_flow.rewards.composition import name_of

CPU = "CPU"
"""The resource class that every machine has."""

PRODUCER, CONSUMER, EVALUATION = "producer", "consumer", "evaluation"
"""The three streams: tasks to buffer, buffer to training steps, and evaluation."""


@dataclass(frozen=True)
class Wanted:
    """A resource class that a stage requests, and its fallback."""

    domain: str
    resource: str
    fallback: str


@dataclass(frozen=True)
class Stage:
    """One node as it will run."""

    node: str
    kind: str
    stream: str
    operator: str
    """The component that runs the stage."""
    parallel: str
    """The degree of parallelism."""
    wants: tuple[Wanted, ...]
    settings: str
    """The main settings, in words."""


@dataclass(frozen=True)
class Edge:
    """The data that flows from one node to another."""

    source: str
    target: str
    carries: str


@dataclass(frozen=True)
class Plan:
    """Stages and edges of a pipeline; prints as `rollart plan` shows it."""

    pipeline: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]

    def as_json(self) -> dict[str, Any]:
        """{pipeline, stages: [...], edges: [...]}, with the fields of the classes above."""
        return asdict(self)


def make_plan(pipeline: Graph) -> Plan:
    stages = tuple(_stage(node) for node in pipeline.nodes)
    pairs = ((up, node) for node in pipeline.nodes for up in node.upstream)
    edges = [Edge(up.name, node.name, _carries(up)) for up, node in pairs]
    if not pipeline.offline:
        edges.append(Edge(pipeline.train.name, pipeline.rollout.name, "policy versions"))
    if pipeline.evaluate is not None:
        edges.append(Edge(pipeline.train.name, pipeline.evaluate.name, "policy versions"))
    return Plan(pipeline.name, stages, tuple(edges))


def _carries(up: Node) -> str:
    match up:
        case Tasks():
            return "assignments"
        case Buffer() | Mix():
            return "batches"
        case Stored() | Reward(drawn=True):
            return "stored trajectories"
        case Trajectories(scored=True):
            return "scored trajectories"
        case _:
            return "trajectories"


def _stage(node: Node) -> Stage:
    stream, operator, parallel, settings = _words(node)
    if isinstance(node, GeneratingNode | Reward):
        settings = "\n".join([settings, *_own_words(node)])
    return Stage(node.name, node.kind, stream, operator, parallel, _wants(node), settings)


def _words(node: Node) -> tuple[str, str, str, str]:
    match node:
        case Tasks():
            mixed = ", ".join(node.domain_names)
            return PRODUCER, "Ray Data source", "1", f"groups of {node.group_size} from {mixed}"
        case Rollout():
            parallel, settings = _rollout_words(node)
            return PRODUCER, "Ray Data actors + engines", parallel, settings
        case Filter():
            where = "with the buffer" if node.scored else "with reward"
            whole = ", whole groups" if node.of_groups else ""
            return PRODUCER, where, "1", f"{node.expression}{whole}"
        case Reward():
            scored_by = "the environment" if node.fn is None else name_of(node.fn)
            at_once = f"{node.max_concurrent} at a time"
            if node.drawn:
                return EVALUATION, "with evaluation", at_once, f"evaluation by {scored_by}"
            return PRODUCER, "Ray Data actors", at_once, f"by {scored_by}"
        case Buffer():
            bound = (
                f"{node.batch_size} a batch, {node.schedule.name}, "
                f"at most {_count(node.alpha, 'version')} stale"
            )
            return PRODUCER, "Ray Data sink + Delta tables", "1 writer", bound
        case Stored():
            return CONSUMER, "Delta tables of runs", "1", _stored_words(node)
        case Mix():
            added = ", ".join(
                f"{count} of {source.name}"
                for source, count in zip(node.others, node.counts, strict=True)
            )
            return CONSUMER, "with train", "1", f"{node.up.batch_size} new a batch, {added}"
        case Train():
            what = f"{node.algorithm.name}, {_count(node.steps, 'step')}"
            what += f", {node.batch_size} a batch" if node.buffer is None else ""
            return CONSUMER, "Ray Data actor + trainer", "1", what
        case Evaluate():
            return EVALUATION, "Ray actor + engine", "1", _evaluate_words(node)
        case _:
            raise TypeError(f"no plan for a node of kind {node.kind}")


def _rollout_words(node: Rollout) -> tuple[str, str]:
    """Processes and settings of a rollout."""
    units = f" of {node.engine_units} units" if node.engine_units > 1 else ""
    parallel = f"{_count(node.workers, 'worker')}, {_count(node.engine_workers, 'engine')}{units}"
    if node.prefill_workers:
        parallel += f", {node.prefill_workers} for prefill"
    if node.pooled(node.up.domains):
        parallel += f", {node.sandbox_workers} for boxes"
    said = f"temperature {node.temperature:g}, {_count(node.max_tokens, 'token')} a turn"
    said += f", {node.redundancy} redundant" if node.redundancy else ""
    return parallel, said + _agent_words(node)


def _evaluate_words(node: Evaluate) -> str:
    """Frequency and settings of an evaluation."""
    tasks = "episode" if node.samples == 1 else "task"
    said = f"every {_count(node.every, 'version')}, {_count(node.episodes, tasks)} by domain"
    said += "" if node.samples == 1 else f", {node.samples} samples of each"
    said += f", {node.redundancy} redundant" if node.redundancy else ""
    said += "" if node.lora is None else ", with a LoRA adapter"
    said += "" if node.reward is None else f", scored by {name_of(node.reward)}"
    return said + _agent_words(node)


def _stored_words(node: Stored) -> str:
    """The runs that a source draws from, and what it takes of them."""
    said = [" and ".join(node.runs)]
    said += [] if node.filter is None else [f"where {node.filter}"]
    said += [] if node.best is None else [f"best {node.best} of each group"]
    said += [] if node.prefer is None else [f"prefers {node.prefer}"]
    return ", ".join(said + (["exempt from the bound"] if node.exempt else []))


def _agent_words(node: GeneratingNode) -> str:
    """The program that is the agent of a node, if there is one."""
    return "" if node.agent is None else f", {node.agent.said}"


def _own_words(node: GeneratingNode | Reward) -> Iterator[str]:
    """A line for each domain with settings of its own."""
    for domain, own in node.by_domain.items():
        said = (
            value.said if isinstance(value, Harness) else f"{name} {describe(value)}"
            for name, value in own.items()
        )
        yield f"{domain}: {', '.join(said)}"


def _count(number: float, what: str) -> str:
    """A number of things, e.g. "1 step" or "0.5 versions"."""
    shown = number if isinstance(number, int) else f"{number:g}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def _wants(node: Node) -> tuple[Wanted, ...]:
    """Resource classes that a rollout node requests; all other nodes run on CPUs."""
    if not isinstance(node, Rollout):
        return ()
    wants = [Wanted(name, node.resource_class(name), CPU) for name in node.up.domain_names]
    if node.worker_affinity[0] != CPU:
        wants.append(Wanted("environments and rewards", node.worker_affinity[0], CPU))
    boxed = [domain.name for domain in node.pooled(node.up.domains)]
    wants += [Wanted(f"boxes of {name}", node.sandboxes.sandbox_class(name), CPU) for name in boxed]
    return tuple(wants)
