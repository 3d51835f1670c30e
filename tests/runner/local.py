"""Runs in the process of a test, on one Ray that a module's tests share."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import ray

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.resources import Remote, WorkerHandle
from rollart_flow.runner.cluster import ray_cluster
from rollart_flow.store import Run, open_run
from rollart_flow.telemetry import Progress, ProgressKind
from rollart_flow.types import EventKind
from tests.local_ray import tolerating_ray

AfterStep = Callable[[int], None]


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of this machine that ends with the context."""
    with tolerating_ray(), ray_cluster():
        yield
        # Ray gives a process that it has killed one second to end, and forgets it then.
        warnings.filterwarnings("ignore", r"subprocess \d+ is still running", ResourceWarning)


def calling(after_step: AfterStep) -> Callable[[Progress], None]:
    """Call back after each step."""

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP:
            after_step(int(progress.row["step"]))

    return on_progress


def pid_of(process: WorkerHandle[Any] | Remote[Any]) -> int:
    """Process of a worker or of another actor."""
    pid: int = ray.get(process.actor.__ray_call__.remote(lambda self: os.getpid()))
    return pid


def nothing(step: int) -> None:
    """Do nothing after a step."""


def run_with(text: str, store: Path, after_step: AfterStep = nothing, name: str = "coins") -> Run:
    """Run a pipeline to its end; what it leaves."""
    loaded = load_source(text, store / "coins.py")
    told = calling(after_step)
    return open_run(runner.run(loaded, store=str(store), name=name, on_progress=told).uri)


def events(run: Run, kind: EventKind) -> pl.DataFrame:
    """Rows of `events` of one kind, in order."""
    return run.events.filter(pl.col("kind") == kind).sort("seq").collect()
