"""Latency from a trajectory's end to its commit in a real run, and what a step waits for commits.

Latencies are read from the tables, in three situations: the demo's pipeline, which takes all of two
CPUs; the same with commits ten times rarer, to see what early commits cost a training step; and
attempts that come one at a time. `bench_rate` has the rate and the memory of many trajectories.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.resources.local import wait
from rollart_flow.runner.executors.ray_cluster import ray_cluster
from rollart_flow.store import Run, open_run
from tests.benchmarks.records import Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
EARLY_MS, LATE_MS = 50, 500
BATCH = 128
SMALL = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic

policy = Policy.tiny(hidden=16, layers=1, heads=2)
prompts = tasks(Arithmetic(), group_size=8)
trajectories = rollout(prompts, policy, max_tokens=4, max_concurrent=48)
batches = buffer(reward(trajectories), batch_size=128, alpha=1)
pipeline = Pipeline("streams", train(batches, policy, grpo(), steps=1))
"""


def run() -> Iterator[Record]:
    """Latencies and waits; takes about two minutes."""
    with tempfile.TemporaryDirectory() as folder, ray_cluster():
        yield record(
            "streams: time of a step that waits for its commits, the demo inline",
            100 * _committing(folder),
            "%",
            at_most=5,
        )
        yield from _demos(folder)
        one: dict[str, Any] = {"steps": 6, "batch_size": 32, "rollout.max_concurrent": 1}
        paced = _run(folder, "paced", SMALL, **one)
        yield record(
            "streams: end of a trajectory to its commit, median, one at a time",
            _latency_ms(paced),
            "ms",
            at_most=100,
            peer=f"{_rate(paced):.0f} trajectories/s",
        )


def _demos(folder: str) -> Iterator[Record]:
    early, late = (
        _run(folder, f"demo-{ms}", DEMO.read_text(), steps=16, every=100, commit_ms=ms)
        for ms in (EARLY_MS, LATE_MS)
    )
    yield record(
        "streams: end of a trajectory to its commit, median, the demo",
        _latency_ms(early),
        "ms",
        at_most=100,
        peer=f"{_latency_ms(late):.0f} ms with commit_ms={LATE_MS}",
    )
    yield record(
        f"streams: the demo's step with commit_ms={EARLY_MS} over that with {LATE_MS}",
        _step_s(early) / _step_s(late),
        "x",
        peer=f"{_step_s(early):.2f} s a step of {BATCH}",
    )


def _run(folder: str, name: str, text: str, executor: str = "ray", **settings: object) -> Run:
    """Run a pipeline and open what it left."""
    overrides: Mapping[str, str] = {key: str(value) for key, value in settings.items()}
    loaded = load_source(text, Path(folder) / f"{name}.py", overrides)
    return open_run(runner.run(loaded, store=folder, name=name, executor=executor).uri)


def _committing(folder: str) -> float:
    """Fraction of the demo's steps that the train operator waits for commits."""
    waited = []

    def timed(answer: object, name: str) -> object:
        started = time.monotonic()
        answered = wait(answer, name)
        if name.startswith("commit"):
            waited.append(time.monotonic() - started)
        return answered

    with mock.patch("rollart_flow.operators.train.wait", timed):
        inline = _run(folder, "inline", DEMO.read_text(), "inline", steps=24, every=100)
    return sum(waited) / float(inline.steps.select("step_s").sum().collect().item())


def _latency_ms(run: Run) -> float:
    late = (pl.col("committed_at") - pl.col("finished_at")).dt.total_microseconds() / 1000
    played = run.trajectories.filter(pl.col("scored_at").is_not_null(), split="train")
    return float(played.select(late.median()).collect().item())


def _step_s(run: Run) -> float:
    """Median seconds of a step, the first ones left out."""
    return float(run.steps.filter(pl.col("step") > 3).select("step_s").median().collect().item())


def _rate(run: Run) -> float:
    """Trained trajectories per second between the third step and the last."""
    finished = pl.col("finished_at")
    span = (finished.max() - finished.min()).dt.total_microseconds() / 1e6
    seconds = run.steps.filter(pl.col("step") >= 3).select(span).collect().item()
    rows = run.batches.filter(pl.col("step") > 3).select(pl.len()).collect().item()
    return float(rows / seconds)
