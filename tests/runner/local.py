"""Runs in the process of a test, and what they leave."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import ray

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.resources import Remote, WorkerHandle
from rollart_flow.store import Run, open_run
from rollart_flow.telemetry import Progress, ProgressKind
from rollart_flow.types import EventKind

AfterStep = Callable[[int], None]


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


def run_with(
    text: str,
    store: Path,
    after_step: AfterStep = nothing,
    name: str = "coins",
    executor: str = "ray",
) -> Run:
    """Run a pipeline to its end; what it leaves."""
    loaded = load_source(text, store / "coins.py")
    told = calling(after_step)
    result = runner.run(loaded, store=str(store), name=name, executor=executor, on_progress=told)
    return open_run(result.uri)


def events(run: Run, kind: EventKind) -> pl.DataFrame:
    """Rows of `events` of one kind, in order."""
    return run.events.filter(pl.col("kind") == kind).sort("seq").collect()
