"""A fresh policy that learns from what another run has stored (rejection sampling).

The demo's pipeline runs for a part of its steps: most of what it stores are failures. The gallery's
`offline.py` then imitates the solved attempts, without rolling out.
"""

import tempfile
from pathlib import Path

import polars as pl

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.store import Run, open_run
from rollart_flow.types import Split
from tests.benchmarks.records import Record, record

GALLERY = Path(__file__).parents[2] / "pipelines"
STEPS = 20
"""Steps of the run that is learned from, of the demo's 110."""
GOAL = 0.8
"""Sampled success in both domains, that of the demo."""


def run() -> list[Record]:
    """Two runs in this process; takes about two minutes."""
    with tempfile.TemporaryDirectory() as folder:
        source, learned = learn_offline(folder)
        first, last = (success(learned, version) for version in (0, steps_of(learned)))
        stored = source.trajectories.filter(pl.col("split") == Split.TRAIN)
        solved = stored.select((pl.col("reward") >= 1).mean()).collect().item()
        beside = success(source, STEPS)
    return [
        record(
            f"offline: sampled success in {domain} after rejection sampling",
            value,
            "of the episodes",
            at_least=GOAL,
            peer=f"fresh policy {first[domain]:.2f}; the run that it learned from "
            f"{beside[domain]:.2f} at its end, {solved:.0%} of its attempts solved",
        )
        for domain, value in last.items()
    ]


def learn_offline(store: str) -> tuple[Run, Run]:
    """Run a part of the demo, and `pipelines/offline.py` on what it stored; return both runs."""
    few = {"steps": str(STEPS), "every": str(STEPS)}
    demo = load_pipeline(GALLERY / "two_domains.py", few)
    source = runner.run(demo, store=store, name="two-domains-1", executor="inline")
    offline = load_pipeline(GALLERY / "offline.py")
    learned = runner.run(offline, store=store, name="offline", executor="inline")
    return open_run(source.uri), open_run(learned.uri)


def success(run: Run, version: int) -> dict[str, float]:
    """Sampled success of a version, by domain."""
    measured = run.evaluations.filter(
        pl.col("policy_version") == version, pl.col("metric") == "success_sampled"
    )
    return dict(measured.sort("domain").select("domain", "value").collect().iter_rows())


def steps_of(run: Run) -> int:
    """Return the last version of a run."""
    return int(run.steps.select(pl.col("step").max()).collect().item())
