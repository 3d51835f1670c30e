"""DPO beside supervised fine-tuning on the same stored rows.

The demo's pipeline runs for a part of its steps, and the solved and the failed attempts of each
group become pairs. Fresh policies learn from the same pairs in the same order: by the likelihood of
both rows, by that of the preferred one alone, by DPO, and by DPO with the likelihood of the
preferred one.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import open_run
from tests.benchmarks.bench_offline import GALLERY, success
from tests.benchmarks.records import Record, record

SOURCE_STEPS, STEPS, SEEDS, PAIRS = 20, 60, (0, 1, 2), 64
PIPELINE = """
import polars as pl

from rollart_flow import Pipeline, Policy, evaluate, stored, train
from rollart_flow.algorithms import dpo, sft
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

solved = pl.col("reward") >= 1
policy = Policy.tiny(seed=<seed>)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
source = stored("source", <rows>, seed=<seed>)
steps = train(source, policy, <algorithm>, steps=<steps>, optimizer=adamw(lr=1e-3))
lake = FrozenLake(size=4, brief=True)
scores = evaluate(policy, numbers, lake, every=<steps>, episodes=64, max_tokens=8)
pipeline = Pipeline("preferences", steps, scores)
"""
BOTH = f"prefer=solved, batch_size={2 * PAIRS}"
ALONE = (
    f"filter=solved & (solved.sum().over('group_id') < pl.len().over('group_id')), "
    f"batch_size={PAIRS}"
)
LEARNERS = {
    "sft of both": (BOTH, "sft()"),
    "sft of the preferred": (ALONE, "sft()"),
    "dpo": (BOTH, "dpo(beta=0.1)"),
    "dpo with likelihood": (BOTH, "dpo(beta=0.1, nll=1.0)"),
}
"""Rows and algorithm by name."""


def run() -> Iterator[Record]:
    """Thirteen runs in this process; takes about four minutes."""
    with tempfile.TemporaryDirectory() as folder:
        few = {"steps": str(SOURCE_STEPS), "every": str(SOURCE_STEPS)}
        demo = load_pipeline(GALLERY / "two_domains.py", few)
        runner.run(demo, store=folder, name="source", executor="inline")
        found = {name: _success(folder, *LEARNERS[name]) for name in LEARNERS}
    for domain in ("arithmetic", "frozenlake"):
        means = {name: fmean(each[domain] for each in runs) for name, runs in found.items()}
        yield record(
            f"preferences: sampled success in {domain}, dpo beyond sft on the same rows",
            means["dpo"] - means["sft of both"],
            "of the episodes",
            at_least=0.2 if domain == "arithmetic" else None,
            peer="; ".join(f"{name} {value:.2f}" for name, value in means.items()),
        )


def _success(folder: str, rows: str, algorithm: str) -> list[dict[str, float]]:
    """Sampled success after the last step by domain, for each seed."""
    found = []
    for seed in SEEDS:
        text = PIPELINE
        given = {"seed": seed, "rows": rows, "algorithm": algorithm, "steps": STEPS}
        for name, value in given.items():
            text = text.replace(f"<{name}>", str(value))
        loaded = load_source(text, Path(folder) / "preferences.py")
        learned = runner.run(loaded, store=folder, executor="inline")
        found.append(success(open_run(learned.uri), STEPS))
    return found
