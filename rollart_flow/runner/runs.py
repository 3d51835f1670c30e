"""Entry points `run` and `resume`, for callers in Python and in the shell."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rollart_flow.errors import MissingExtraError, PipelineError, SettingsError
from rollart_flow.pipeline import LoadedPipeline, Pipeline
from rollart_flow.runner.executors import DEFAULT, Executor, executor_for
from rollart_flow.runner.recorded import check_as_recorded, load_recorded, with_steps
from rollart_flow.runner.session import Session
from rollart_flow.runner.setup import complete_run, create_run, removed_if_refused
from rollart_flow.runner.signals import terminable
from rollart_flow.store import Run, RunInfo, RunStatus, read_info
from rollart_flow.store.info import Resumed, write_info
from rollart_flow.store.layout import pipeline_uri
from rollart_flow.store.lease import Lease, check_free
from rollart_flow.store.lease_file import Tenure
from rollart_flow.telemetry import OnProgress, Progress, ignore_progress

REFUSALS = (MissingExtraError, PipelineError, SettingsError)
"""Errors that say that a pipeline cannot run as it is."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Name, address, and status of a run."""

    name: str
    uri: str
    status: RunStatus


def run(
    loaded: LoadedPipeline,
    *,
    store: str | None = None,
    name: str | None = None,
    executor: str = DEFAULT,
    address: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> RunResult:
    """Create a run of a pipeline and run it to its end.

    Args:
        loaded: pipeline as returned by `pipeline.load_pipeline`.
        store: address of the run store; $ROLLART_STORE or ./runs by default.
        name: name of the run; the pipeline's name and a number by default.
        executor: "ray", or "inline" for this process (see `runner.executors`).
        address: address of the Ray cluster; by default a local one starts (see `ray_cluster`).
        on_progress: callback for progress messages.

    Raises:
        RunExistsError: the name is taken.
        StoreError: the store cannot be written.
        SettingsError: the pipeline cannot run as it is; nothing is left of the run.
        RunFailedError: the run failed; it can be read, and resumed once the cause is fixed.
    """
    chosen = executor_for(loaded.pipeline, executor, address)
    with terminable():
        uri = create_run(
            loaded, store=store, name=name, on_progress=on_progress, isolated=chosen.isolates
        )
        with removed_if_refused(uri, *REFUSALS), Lease(uri) as lease:
            return drive(chosen, loaded.pipeline, uri, on_progress, lease)


def resume(
    uri: str,
    *,
    steps: int | None = None,
    accept_divergence: bool = False,
    take_over: bool = False,
    executor: str = DEFAULT,
    address: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> RunResult:
    """Continue a run from the state that its tables record.

    Args:
        uri: address of the run.
        steps: number of steps that the run is to have, if that differs from what it was made with;
            a finished run goes on to it.
        accept_divergence: continue even if a recomputed step differs from the recorded one.
        take_over: continue also if a process that drives the run is alive, but has not renewed its
            lease for `store.lease.EXPIRES_S`. It can no longer write.
        executor: "ray", or "inline" for this process (see `runner.executors`).
        address: address of the Ray cluster; by default a local one starts (see `ray_cluster`).
        on_progress: callback for progress messages.

    Raises:
        RunNotFoundError: there is no run at the address.
        SettingsError: the pipeline file builds something else than it did for the run, or the run
            has trained more steps already.
        RunFailedError: the run is already running, or fails again.
    """
    info = recorded = read_info(uri)
    if info.status is RunStatus.FINISHED and steps is None:
        on_progress(Progress.note(f"run {info.name} is finished; there is nothing to resume"))
        return _result(uri)
    if info.status is RunStatus.RUNNING:
        check_free(uri, info.owner, take_over=take_over)
    loaded = load_recorded(uri, info, steps)
    if steps is not None:
        info = with_steps(Run(uri), loaded)
    check_as_recorded(loaded.pipeline, info)
    own = f"{info.name} goes on with its copy of the pipeline file, {pipeline_uri(uri)}"
    on_progress(Progress.note(own))
    if not info.term:  # what an earlier version has recorded, in the terms of this one
        info = replace(info, settings=loaded.pipeline.settings())
    chosen = executor_for(loaded.pipeline, executor, address)
    with (
        terminable(),
        Lease(uri, term=info.term, take_over=take_over) as lease,
        _claimed(uri, info, lease.tenure, recorded),
    ):
        complete_run(loaded.pipeline, uri, on_progress, lease.tenure, isolated=chosen.isolates)
        return drive(
            chosen, loaded.pipeline, uri, on_progress, lease, accept_divergence=accept_divergence
        )


def drive(
    executor: Executor,
    pipeline: Pipeline,
    uri: str,
    on_progress: OnProgress,
    lease: Lease,
    *,
    accept_divergence: bool = False,
) -> RunResult:
    """Execute a run with a complete folder to its end, from the state that its tables record.

    Raises:
        RunFailedError: the run failed.
    """
    with executor as entered:
        session = Session(entered, pipeline, uri, pipeline_uri(uri), on_progress, lease)
        session.run(accept_divergence=accept_divergence)
    return _result(uri)


@contextmanager
def _claimed(
    uri: str, info: RunInfo, tenure: Tenure, recorded: RunInfo | None = None
) -> Iterator[None]:
    """Claim a run while this process prepares to resume it, until the run's writer takes over.

    Args:
        uri: address of the run.
        info: information of the run from now on.
        tenure: the right of this process to drive the run.
        recorded: information of the run so far, if that differs; it stands again if no writer takes
            over.
    """
    claimed = replace(
        info,
        status=RunStatus.RUNNING,
        error=None,
        owner=tenure.owner,
        term=tenure.term,
        resumed=(*info.resumed, Resumed.now()),
    )
    write_info(uri, claimed)
    try:
        yield
    except BaseException:
        if read_info(uri) == claimed:
            write_info(uri, replace(recorded or info, term=tenure.term))  # no writer was opened
        raise


def _result(uri: str) -> RunResult:
    info = read_info(uri)
    return RunResult(info.name, uri, info.status)
