"""Restart of all ranks of the trainer, while all other processes of the run go on.

Rollout goes on as far as the bound allows. The new ranks load the newest checkpoint and train the
recorded steps after it again; the step that was under way is trained again from its batch.
"""

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from rollart_flow.pipeline import Pipeline
from rollart_flow.resources.manager import still_reserved
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.retrain import catch_up
from rollart_flow.runner.trainers import gather_trainers, in_turns, start_trainers
from rollart_flow.store import Run
from rollart_flow.store.away import repeated_query
from rollart_flow.telemetry import OnProgress
from rollart_flow.weights.registry import transport_of


def only_trainer_died(processes: RunProcesses, pipeline: Pipeline, died: Collection[str]) -> bool:
    """Return whether all dead processes are ranks, and others do not depend on these very ones.

    Engines that hold the trainer's devices in turns with it, or to which its ranks send the weights
    directly, have to start again with it. If a rank's resources went with its node, all processes
    have to be placed again.
    """
    workers = processes.trainers.workers
    ranks = {worker.name for worker in workers}
    bound = in_turns(processes.trainers) or transport_of(pipeline.train.weights).capabilities.sends
    alone = bool(died) and ranks.issuperset(died) and not bound
    return alone and still_reserved([worker.placement for worker in workers])


def restart_trainer(
    processes: RunProcesses,
    pipeline: Pipeline,
    uri: str,
    on_progress: OnProgress,
    *,
    accept_divergence: bool,
) -> RunProcesses:
    """Replace all ranks, bring the new ones to the newest recorded version, and tell the others.

    The stream of the consumer must have ended.

    Returns:
        The processes of the run with the new ranks.

    Raises:
        RunFailedError: see `catch_up`.
    """
    placed = [worker.placement for worker in processes.trainers.workers]
    for worker in processes.trainers.workers:
        worker.kill()
    servers = processes.weight_servers
    weights = pipeline.train.weight_store if servers is None else servers.weights
    trainers = start_trainers(processes.executor, pipeline, uri, weights, placed)
    run = Run(uri)
    newest = repeated_query(
        f"read the steps of {uri}",
        lambda: run.steps.select(pl.col("step").max()).collect().item(),
    )
    version = processes.recovered.version if newest is None else int(newest)
    recovered = replace(processes.recovered, version=version)
    restarted = replace(processes, trainers=trainers, recovered=recovered)
    gather_trainers(trainers, uri)
    catch_up(run, restarted, on_progress, accept_divergence=accept_divergence)
    # The former ranks may have died before the version was readable, or before they reported it.
    restarted.publish_recovered()
    restarted.coordinator.call.published(version, 0.0)
    restarted.coordinator.call.trained(version, 0.0)
    return restarted
