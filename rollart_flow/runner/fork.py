"""Forks: new runs that start from a version of another run, with their own pipeline.

A fork is independent of its parent: it holds the policy and the trainer's state at that version, so
that it can be resumed, replayed, and forked again after its parent is gone. That version is the
fork's initial policy and also the reference policy, if the algorithm has one. Invariant: a fork
starts from exactly the weights and optimizer state with which the parent continued.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rollart_flow.errors import RunFailedError, SettingsError, StoreError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.pipeline import LoadedPipeline, Pipeline
from rollart_flow.runner.adapters import copy_adapter
from rollart_flow.runner.executors import DEFAULT, executor_for
from rollart_flow.runner.fork_start import ForkStart
from rollart_flow.runner.retrain import bring_to, check_version, stored_pipeline, stored_trainer
from rollart_flow.runner.runs import REFUSALS, RunResult, drive
from rollart_flow.runner.setup import create_run, publish_start, removed_if_refused
from rollart_flow.runner.signals import terminable
from rollart_flow.runner.stored_runs import check_sources
from rollart_flow.runner.teachers import copy_teacher
from rollart_flow.store import Parent, Run, RunWriter, files
from rollart_flow.store.layout import checkpoints_uri, policy_uri
from rollart_flow.store.lease import Lease
from rollart_flow.store.lease_file import Tenure
from rollart_flow.telemetry import OnProgress, Progress, ignore_progress
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder
from rollart_flow.weights.folder_store import local_path, made

_TOKENIZER = "tokenizer.json"
_MAY_DIFFER = ("max_position_embeddings", "initializer_range")


def fork(
    parent_uri: str,
    step: int,
    loaded: LoadedPipeline,
    *,
    store: str | None = None,
    name: str | None = None,
    executor: str = DEFAULT,
    address: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> RunResult:
    """Create a run that starts at a version of another run, and run it to its end.

    Args:
        parent_uri: address of the run to start from; it may still be running.
        step: version of the parent to start at, from 0; the new run's first step is the next one.
        loaded: pipeline of the new run. It may differ from the parent's in everything except the
            shape and the tokenizer of its model.
        store: address of the run store; $ROLLART_STORE or ./runs by default.
        name: name of the new run; the pipeline's name and a number by default.
        executor: "ray", or "inline" for this process (see `runner.executors`).
        address: address of the Ray cluster; by default a local one starts (see `ray_cluster`).
        on_progress: callback for progress messages.

    Raises:
        RunNotFoundError: the parent does not exist.
        SettingsError: the parent has no such version, the pipeline has no step after it, or its
            policy has another shape or tokenizer.
        RunExistsError: the name is taken.
        RunFailedError: the parent's version cannot be recomputed as it was recorded, or the new
            run failed.
    """
    chosen = executor_for(loaded.pipeline, executor, address)
    with terminable():
        uri = prepare_fork(
            parent_uri, step, loaded, store=store, name=name, on_progress=on_progress
        )
        with removed_if_refused(uri, *REFUSALS), Lease(uri) as lease:
            return drive(chosen, loaded.pipeline, uri, on_progress, lease)


def prepare_fork(
    parent_uri: str,
    step: int,
    loaded: LoadedPipeline,
    *,
    store: str | None = None,
    name: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> str:
    """Create the folder of a fork, complete up to its first step, and return its address.

    If that fails, the folder is removed. See `fork` for the arguments.
    """
    parent, pipeline = Run(parent_uri), loaded.pipeline
    check_version(parent, step)
    if pipeline.train.steps <= step:
        raise SettingsError(
            f"train: steps is {pipeline.train.steps}, so nothing is left to train after step "
            f"{step}; raise it, as in -s steps={step + 10}"
        )
    _check_model(pipeline.policy, local_path(policy_uri(parent.uri)))
    origin = Parent(parent.uri, step)
    uri = create_run(loaded, store=store, name=name, on_progress=on_progress, parent=origin)
    try:
        with Lease(uri) as lease:
            _start_from(parent, step, pipeline, uri, on_progress, lease.tenure)
    except BaseException:
        with suppress(StoreError):
            files.clear(uri)
        raise
    return uri


def _check_model(policy: Policy, parents: str) -> None:
    """Refuse a policy whose model or tokenizer differs from the parent's policy folder."""
    from rollart_flow.models.folder import read_config
    from rollart_flow.models.tokenizer import tokenizer_files

    theirs = read_config(parents)
    with _model_folder(policy) as folder:
        shape = read_config(folder).as_json()
        same_tokenizer = tokenizer_files(folder)[_TOKENIZER] == tokenizer_files(parents)[_TOKENIZER]
    for field, value in theirs.as_json().items():
        if field not in _MAY_DIFFER and shape.get(field) != value:
            raise SettingsError(
                f"policy: {field} is {shape.get(field)}, but the run to fork has {value}; "
                "a fork keeps the shape of the model"
            )
    if not same_tokenizer:
        raise SettingsError("policy: the tokenizer is not that of the run to fork; a fork keeps it")
    if policy.max_context > theirs.max_position_embeddings:
        raise SettingsError(
            f"policy: max_context is {policy.max_context}, but the model of the run to fork has "
            f"{theirs.max_position_embeddings} positions; lower it"
        )


@contextmanager
def _model_folder(policy: Policy) -> Iterator[Path]:
    """Provide a folder with the model config and the tokenizer of a policy."""
    if policy.path is not None:
        yield Path(policy.path)
        return
    with TemporaryDirectory() as temporary:
        made = Path(temporary) / "policy"
        materialize(policy, made)
        yield made


def _start_from(
    parent: Run,
    version: int,
    pipeline: Pipeline,
    uri: str,
    on_progress: OnProgress,
    tenure: Tenure,
) -> None:
    """Write the parent's policy and trainer state at a version to the folder of the new run."""
    from rollart_flow.models.folder import read_config, save_folder
    from rollart_flow.models.tokenizer import tokenizer_files
    from rollart_flow.trainers.checkpoint.checkpoint import write_checkpoint

    on_progress(Progress.phase(f"reading version {version} of {parent.info.name}"))
    theirs = stored_pipeline(parent)
    trainer = stored_trainer(parent, theirs)
    for again in bring_to(parent, trainer, version, on_progress):
        if not again.same_weights:
            raise RunFailedError(
                f"version {version} cannot be recomputed: step {again.step}: {again.difference}"
            )
    start = ForkStart(trainer, theirs, pipeline, uri)
    parents = local_path(policy_uri(parent.uri))
    with made(policy_uri(uri)) as folder:
        weights = start.policy(parents)
        save_folder(folder, read_config(parents), weights, tokenizer_files(parents))
    check_sources(pipeline, uri)
    copy_adapter(pipeline, uri)
    copy_teacher(pipeline, uri, parent.uri)
    writer = RunWriter.open(uri, tenure)
    if not version:
        publish_start(uri, writer, version, checkpoint=False)
        return
    checkpoint = start.checkpoint(local_path(policy_uri(uri)))
    with made(checkpoint_folder(checkpoints_uri(uri), version)) as folder:
        write_checkpoint(folder, checkpoint)
    tensors = None if start.adapter is None else checkpoint.weights
    publish_start(uri, writer, version, tensors, start.adapter, checkpoint=True)
