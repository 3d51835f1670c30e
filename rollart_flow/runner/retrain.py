"""Reconstruction of a run's trainer at any version from a checkpoint and stored batches.

Resume uses it in the trainer's workers, and replay and fork use it in this process. Invariant: a
retrained step sees exactly the stored data, and its results are compared with the recorded ones to
the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl
import pyarrow as pa

from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.models.repositories import standing_in
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.rows import to_ipc
from rollart_flow.runner.settings import rank_settings
from rollart_flow.runner.teachers import with_own_teacher
from rollart_flow.store import Run, files
from rollart_flow.store.cache import local_file
from rollart_flow.store.images import with_images
from rollart_flow.store.layout import checkpoints_uri, pipeline_uri, policy_uri, read_pipeline
from rollart_flow.telemetry import OnProgress, Progress, ignore_progress
from rollart_flow.trainers.build import build_trainer
from rollart_flow.trainers.checkpoint.retention import stored_checkpoints
from rollart_flow.types import Event, EventKind
from rollart_flow.weights.folder_store import local_path
from rollart_flow.weights.terms import folder_name

if TYPE_CHECKING:
    from rollart_flow.resources import TypedCluster
    from rollart_flow.runner.processes import RunProcesses
    from rollart_flow.trainers.base import StepResult, Trainer
    from rollart_flow.trainers.worker import TrainWorker

FACTS = ("loss", "grad_norm", "fingerprint")
"""Columns of `steps` that a recomputed step must reproduce to the last bit."""

Facts = dict[str, float | str]


class Retrainable(Protocol):
    """Interface of a trainer, in this process or in others."""

    def load_from(self, address: str) -> object:
        """Restore the checkpoint at an address; see `Trainer.load_from`."""

    def train_or_skip(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch and return the result; see `Trainer.train_or_skip`."""


@dataclass(frozen=True, slots=True)
class Retrained:
    """Result of training a recorded step again."""

    step: int
    recorded: Facts
    recomputed: Facts
    same_weights: bool
    """Whether the weights are the recorded ones, or ones that a resumed run accepted instead."""
    difference: str | None
    """Description of the first fact that differs, as one line, or None if all are equal."""


def stored_pipeline(run: Run) -> Pipeline:
    """Load the pipeline that a run was created with, with its overrides applied.

    A pretrained model that is not on this machine is the one in the run's folder.

    Raises:
        StoreError, PipelineError: the pipeline is not stored, or cannot be built on this machine.
    """
    overrides = {key: str(value) for key, value in run.info.overrides.items()}
    path = local_file(pipeline_uri(run.uri))
    with standing_in(Path(local_path(policy_uri(run.uri)))):
        return load_source(read_pipeline(run.uri), path, overrides).pipeline


def stored_trainer(run: Run, pipeline: Pipeline, threads: int | None = None) -> Trainer:
    """Build a trainer in this process with a run's settings and initial policy, at version 0.

    If the run trained on a GPU and this machine has none, the trainer computes on the CPU; the
    message about any difference then names the devices.

    Args:
        run: the run.
        pipeline: the run's pipeline.
        threads: recorded number of threads; the pipeline's by default.
    """
    from rollart_flow.models.device import device_here

    settings = rank_settings(pipeline, run.uri)
    here = device_here(settings.device)
    settings = replace(settings, threads=threads or settings.threads, device=here)
    algorithm = with_own_teacher(pipeline.train.algorithm, run.uri)
    return build_trainer(settings, algorithm, local_path(policy_uri(run.uri)))


def start_version(run: Run) -> int:
    """Return the version that a run started from: 0, or the version that it was forked at."""
    parent = run.info.parent
    return 0 if parent is None else parent.step


def check_version(run: Run, version: int) -> None:
    """Refuse a version that a run does not have.

    Raises:
        SettingsError: the run has no such version; the message names the existing versions.
    """
    newest = run.steps.select(pl.col("step").max()).collect().item()
    first = start_version(run)
    last = first if newest is None else int(newest)
    if not first <= version <= last:
        raise SettingsError(
            f"run {run.info.name} has no version {version}; it has {first} to {last}"
        )


def recorded_step(run: Run, step: int) -> dict[str, Any]:
    """Return the row of `steps` of one step.

    Raises:
        SettingsError: the step is not recorded; the message names the recorded steps.
    """
    steps = run.steps
    rows = steps.filter(pl.col("step") == step).collect().to_dicts()
    if rows:
        return rows[0]
    column = pl.col("step")
    first, last = steps.select(first=column.min(), last=column.max()).collect().row(0)
    there = "no steps yet" if first is None else f"steps {first} to {last}"
    raise SettingsError(f"run {run.info.name} has no step {step}; it has {there}")


def bring_to(
    run: Run, trainer: Retrainable, version: int, on_progress: OnProgress = ignore_progress
) -> Iterator[Retrained]:
    """Bring a trainer to a version of its run, step by step.

    Args:
        run: the run.
        trainer: trainer at version 0 with the run's initial policy, as from `stored_trainer`.
        version: an existing version of the run.
        on_progress: callback that receives the step in training.

    Yields:
        Result of each step trained again; none if there is a checkpoint of the version.

    Raises:
        TrainerError: a checkpoint is missing or damaged.
        StoreError: a batch is not stored.
    """
    reached, folder = _nearest_checkpoint(run, version)
    if folder is not None:
        trainer.load_from(folder)
    for step in range(reached + 1, version + 1):
        on_progress(Progress.phase(f"recomputing step {step} of {version}"))
        yield retrain(run, trainer, step)


def retrain(run: Run, trainer: Retrainable, step: int) -> Retrained:
    """Train a recorded step again with a trainer that is at the preceding version.

    Raises:
        SettingsError: the step is not recorded.
    """
    row = recorded_step(run, step)
    result = trainer.train_or_skip(step, with_images(run.uri, run.batch(step)))
    recorded, recomputed = (_facts(row), _facts({k: getattr(result, k) for k in FACTS}))
    return Retrained(
        step=step,
        recorded=recorded,
        recomputed=recomputed,
        same_weights=result.fingerprint in {row["fingerprint"], *_accepted(run, step)},
        difference=_difference(row, result),
    )


class _Workers:
    """The trainer's workers as one trainer; implements `Retrainable`."""

    def __init__(self, trainers: TypedCluster[TrainWorker]) -> None:
        self._trainers = trainers

    def load_from(self, address: str) -> None:
        """Load a checkpoint in all workers."""
        self._trainers.call.load(address)

    def train_or_skip(self, step: int, batch: pa.Table) -> StepResult:
        """Train on a batch in all workers and return the first worker's result."""
        return self._trainers.call.train_step(step, to_ipc(batch))


def catch_up(
    run: Run, processes: RunProcesses, on_progress: OnProgress, *, accept_divergence: bool = False
) -> None:
    """Load the newest checkpoint and recompute the steps after it.

    Raises:
        RunFailedError: a recomputed step differs from the recorded one, and `accept_divergence` is
            false.
    """
    workers = _Workers(processes.trainers)
    for again in bring_to(run, workers, processes.recovered.version, on_progress):
        if again.same_weights:
            continue
        recorded, recomputed = (
            str(facts["fingerprint"]) for facts in (again.recorded, again.recomputed)
        )
        if not accept_divergence:
            raise RunFailedError(
                f"step {again.step} recomputed from its batch gives other weights "
                f"({recomputed[:12]}) than recorded ({recorded[:12]}); "
                "resume with --accept-divergence to go on from the recomputed ones"
            )
        detail = {"recorded": recorded, "recomputed": recomputed}
        event = Event(EventKind.DIVERGENCE, str(again.step), step=again.step, detail=detail)
        processes.buffer.call.report([(datetime.now(UTC), event)])


def _facts(values: dict[str, Any]) -> Facts:
    return {name: values[name] for name in FACTS}


def _nearest_checkpoint(run: Run, version: int) -> tuple[int, str | None]:
    """Return the newest version up to `version` that has a checkpoint, and the address of that; the
    start version, which may lack one, if there is none."""
    named = pl.col("policy_version")
    rows = run.weights.filter(pl.col("checkpoint"), named <= version).select(named).collect()
    place = checkpoints_uri(run.uri)
    stored = stored_checkpoints(place)
    reached = max([start_version(run), *stored.keys() & set(rows["policy_version"].to_list())])
    if not reached:
        return 0, None
    return reached, stored.get(reached, files.join(place, folder_name("", reached)))


def _accepted(run: Run, step: int) -> set[str]:
    """Return the diverging fingerprints that a resumed run accepted for a step."""
    diverged = pl.col("kind") == EventKind.DIVERGENCE, pl.col("step") == step
    details = run.events.filter(*diverged).collect()["detail"].to_list()
    return {json.loads(detail)["recomputed"] for detail in details}


def _difference(row: dict[str, Any], result: StepResult) -> str | None:
    """Describe the first fact that differs, and how the two computations' circumstances differ."""
    for name in FACTS:
        recorded, recomputed = row[name], getattr(result, name)
        if recorded != recomputed:
            said = f"{name} {recorded!r} was recorded, {recomputed!r} recomputed"
            return said + _circumstances(row, result)
    return None


def _circumstances(row: dict[str, Any], result: StepResult) -> str:
    then = {"threads": row["threads"], **json.loads(row["kernels"])}
    now = {"threads": result.threads, **json.loads(result.kernels)}
    changed = [
        f"{name} {then.get(name)} then, {now.get(name)} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
    return f" ({'; '.join(changed)})" if changed else ""
