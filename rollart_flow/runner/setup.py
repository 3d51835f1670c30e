"""Setup of a run: its folder, its initial policy, and the rows that precede any trajectory.

The folder is complete once it has the version that the run starts from; until then the run's
processes do not start. `complete_run` repeats a setup that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from rollart_flow.envs.examples import ExampleSettings
from rollart_flow.errors import RunExistsError, RunFailedError, StoreError
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.pipeline import LoadedPipeline, Pipeline
from rollart_flow.resources.blocking import driver_waits
from rollart_flow.rows import events_table
from rollart_flow.runner.adapters import copy_adapter
from rollart_flow.runner.admissions import usable_admissions
from rollart_flow.runner.stored_runs import check_sources, pinned_runs
from rollart_flow.runner.teachers import copy_teacher
from rollart_flow.runner.trust import trust
from rollart_flow.store import Parent, Run, RunInfo, RunStatus, RunWriter, files, new_run_uri
from rollart_flow.store.cache import local_file
from rollart_flow.store.layout import (
    checkpoints_uri,
    pipeline_uri,
    policy_uri,
    run_names,
    weights_uri,
    write_pipeline,
)
from rollart_flow.store.lease import Lease
from rollart_flow.store.lease_file import Tenure
from rollart_flow.store.pins import described_pins
from rollart_flow.telemetry import OnProgress, Progress
from rollart_flow.text import counted
from rollart_flow.types import Event, EventKind, Limits
from rollart_flow.weights import stored_weights
from rollart_flow.weights.atomic import clear_leftovers, remove_folder
from rollart_flow.weights.folder_store import local_path, made
from rollart_flow.weights.rows import weights_table

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.base import AdapterEntry


def free_name(pipeline: Pipeline, store: str | None) -> str:
    """Return the pipeline's name with the first number that no run of the store uses."""
    taken = set(run_names(store))
    return next(
        name
        for number in range(1, len(taken) + 2)
        if (name := f"{pipeline.name}-{number}") not in taken
    )


def create_run(
    loaded: LoadedPipeline,
    *,
    store: str | None,
    name: str | None,
    on_progress: OnProgress,
    isolated: bool = True,
    parent: Parent | None = None,
) -> str:
    """Create the folder of a new run, with its policy and version 0, and return its address.

    With a parent, the folder has no policy or version yet. If it cannot be made, nothing is left of
    it, so that its name stays free. Code of users runs in processes if it is `isolated`.

    Raises:
        RunExistsError: the name is taken.
        SettingsError: a domain needs admitted tasks, and has none.
        StoreError: the store cannot be written.
    """
    pipeline = loaded.pipeline
    uri = new_run_uri(name or free_name(pipeline, store), store)
    info = RunInfo(
        name=uri.rsplit("/", 1)[-1],
        pipeline=pipeline.name,
        seed=pipeline.seed,
        settings=pipeline.settings(),
        overrides=dict(loaded.overrides),
        parent=parent,
    )
    admissions = usable_admissions(pipeline, store, loaded.path)
    pins = pinned_runs(pipeline, store, parent)
    try:
        writer = RunWriter.create(uri, info)
    except RunExistsError as error:
        said = f"there is a run at {uri} already; choose another --name, or `rollart resume`"
        raise RunExistsError(said) from error
    with removed_if_refused(uri):
        write_pipeline(uri, loaded.source_text)
        if files.is_remote(uri):
            trust(uri)
        detail: dict[str, Any] = {
            "pipeline": pipeline.name, "overrides": dict(loaded.overrides), **described_pins(pins)
        }  # fmt: skip
        started = Event(EventKind.RUN, info.name, detail=detail)
        began = {"events": events_table([(datetime.now(UTC), started)])}
        writer.commit_many(began if admissions is None else {**began, "admissions": admissions})
        if parent is None:
            with Lease(uri), _recording_failure(writer):
                _begin(pipeline, uri, writer, on_progress, isolated=isolated)
    return uri


@contextmanager
def removed_if_refused(uri: str, *refusals: type[Exception]) -> Iterator[None]:
    """Remove a new run that was refused before it had any trajectory.

    Args:
        uri: address of the run.
        refusals: errors, or causes of errors, that refuse it; all by default.
    """
    try:
        yield
    except Exception as error:
        refused = not refusals or isinstance(error.__cause__ or error, refusals)
        with suppress(StoreError):
            if refused and Run(uri).trajectories.select(pl.len()).collect().item() == 0:
                files.clear(uri)
        raise


@contextmanager
def _recording_failure(writer: RunWriter) -> Iterator[None]:
    """Record in `run.json` how a setup failed, if that file can still be written."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        status = RunStatus.INTERRUPTED if interrupted else RunStatus.FAILED
        with suppress(StoreError):
            writer.close(status, None if interrupted else files.one_line(error))
        raise


def _begin(
    pipeline: Pipeline, uri: str, writer: RunWriter, on_progress: OnProgress, *, isolated: bool
) -> None:
    on_progress(Progress.phase("making the initial policy", total_steps=pipeline.train.steps))
    with made(policy_uri(uri)) as folder, driver_waits(uri):
        _make_policy(pipeline, uri, folder, on_progress, isolated=isolated)
    check_sources(pipeline, uri)
    copy_adapter(pipeline, uri)
    copy_teacher(pipeline, uri)
    publish_start(uri, writer, 0, checkpoint=False)


def complete_run(
    pipeline: Pipeline,
    uri: str,
    on_progress: OnProgress,
    tenure: Tenure,
    *,
    isolated: bool = True,
) -> None:
    """Repeat a setup that was interrupted, and remove what a killed process left unfinished.

    Raises:
        RunFailedError: the run is a fork without the version that it starts from.
    """
    run = Run(uri)
    if not files.is_remote(uri):
        clear_leftovers(Path(checkpoints_uri(uri)))
    if run.weights.select(pl.len()).collect().item():
        return
    if run.info.parent is not None:
        raise RunFailedError(
            f"run {run.info.name} was interrupted while it was forked from {run.info.parent.uri}; "
            "remove its folder and fork again"
        )
    writer = RunWriter.open(uri, tenure)
    with _recording_failure(writer):
        _begin(pipeline, uri, writer, on_progress, isolated=isolated)


def _make_policy(
    pipeline: Pipeline, uri: str, folder: Path, on_progress: OnProgress, *, isolated: bool
) -> None:
    policy = pipeline.policy
    if folder.exists():  # left by an interrupted setup
        remove_folder(folder)
    clear_leftovers(folder.parent)
    materialize(policy, folder)
    if policy.warm_start:
        from rollart_flow.trainers.warm_start import warm_start

        on_progress(Progress.phase(f"format warm start, {counted(policy.warm_start, 'step')}"))
        settings = ExampleSettings(
            _step_timeout_s(pipeline), local_file(pipeline_uri(uri)), isolated
        )
        warm_start(
            folder,
            pipeline.taught_domains,
            load_codec(folder),
            policy.warm_start,
            policy.seed,
            settings=settings,
        )


def _step_timeout_s(pipeline: Pipeline) -> float:
    node = pipeline.evaluate if pipeline.offline else pipeline.rollout
    return Limits().step_timeout_s if node is None else node.step_timeout_s


def publish_start(
    uri: str,
    writer: RunWriter,
    version: int,
    tensors: Mapping[str, torch.Tensor] | None = None,
    adapter: AdapterEntry | None = None,
    *,
    checkpoint: bool,
) -> None:
    """Publish the version that a run starts from.

    Args:
        uri: address of the run.
        writer: writer of the run.
        version: number of the version.
        tensors: its tensors; by default the weights in the run's policy folder.
        adapter: the adapter whose matrices the tensors are; None for whole weights.
        checkpoint: whether there is a checkpoint of the version.
    """
    from rollart_flow.models.folder import load_folder

    if tensors is None:
        _, tensors = load_folder(local_path(policy_uri(uri)))
    store = stored_weights(weights_uri(uri))
    manifest = store.publish(version, tensors, adapter=adapter, lasting=True)
    row = weights_table(manifest, datetime.now(UTC), checkpoint=checkpoint)
    writer.commit("weights", row)
