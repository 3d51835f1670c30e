"""The two streams of a real run: rate, latency from a trajectory's end to its commit, memory.

One-turn episodes and a model of a few thousand parameters, so that what is measured is the way of a
trajectory through the operators. Latencies are read from the table. They are measured twice: where
attempts come one at a time, and where as many run as the bound allows and the CPUs are full.
"""

import tempfile
from pathlib import Path

import polars as pl
import psutil

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.cluster import ray_cluster
from rollart_flow.store import Run, open_run
from rollart_flow.telemetry import Progress, ProgressKind
from tests.benchmarks.records import Record, record

TRAJECTORIES = 10_000
BATCH = 128
PIPELINE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic

policy = Policy.tiny(hidden=16, layers=1, heads=2)
prompts = tasks(Arithmetic(), group_size=8)
trajectories = rollout(prompts, policy, max_tokens=4, max_concurrent=<concurrent>)
batches = buffer(reward(trajectories), batch_size=<batch>, alpha=1, commit_ms=<commit_ms>)
pipeline = Pipeline("streams", train(batches, policy, grpo(), steps=<steps>))
"""


def run() -> list[Record]:
    """Rates, latencies and the driver's memory; takes about five minutes."""
    steps = TRAJECTORIES // BATCH
    with tempfile.TemporaryDirectory() as folder, ray_cluster():
        paced, _ = _run(folder, "paced", concurrent=1, batch=32, commit_ms=50, steps=8)
        full, memory = _run(folder, "full", concurrent=48, batch=BATCH, commit_ms=50, steps=steps)
        late, _ = _run(folder, "late", concurrent=48, batch=BATCH, commit_ms=500, steps=16)
        half = len(memory) // 2
        return [
            record(
                "streams: end of a trajectory to its commit, median, one at a time",
                _latency_ms(paced),
                "ms",
                at_most=500,
                peer=f"{_rate(paced):.0f} trajectories/s",
            ),
            record(
                "streams: the same where all CPUs are full",
                _latency_ms(full),
                "ms",
                peer=f"{_latency_ms(late):.0f} ms with commit_ms=500",
            ),
            record(
                "streams: step time with commit_ms=500 over that with commit_ms=50",
                _step_s(late) / _step_s(full),
                "x",
                peer=f"{_step_s(full):.2f} s a step of {BATCH}",
            ),
            record(f"streams: rate over {TRAJECTORIES}", _rate(full), "trajectories/s"),
            record(
                f"streams: growth of the driver over the second half of {TRAJECTORIES}",
                max(memory[half:]) - max(memory[2:half]),
                "MB",
                at_most=20,
                peer=f"{memory[2]:.0f} MB at step 3",
            ),
        ]


def _run(folder: str, name: str, **values: int) -> tuple[Run, list[float]]:
    """Run the pipeline; what it left, and the driver's memory after each step [MB]."""
    text = PIPELINE
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    memory: list[float] = []

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP:
            memory.append(psutil.Process().memory_info().rss / 1e6)

    loaded = load_source(text, Path(folder) / "streams.py")
    return open_run(
        runner.run(loaded, store=folder, name=name, on_progress=on_progress).uri
    ), memory


def _latency_ms(run: Run) -> float:
    late = (pl.col("committed_at") - pl.col("finished_at")).dt.total_microseconds() / 1000
    value = run.trajectories.filter(outcome="completed").select(late.median()).collect().item()
    return float(value)


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
