"""Pipelines whose own code kills processes at chosen moments, and what must hold afterwards.

A `Gate` is a file that names a process. Code of the pipeline that reaches the gate of that name
takes the file away, so that it happens once, and kills the process with SIGKILL.
"""

import os
from pathlib import Path

import polars as pl

from rollart_flow.store import Run
from rollart_flow.types import EventKind

SELF = "self"
"""The process that reaches the gate."""
STOP = "stop"
"""The same, but it hangs, alive, until somebody kills it."""
PAUSE = "pause"
"""Nobody is killed: the thread that reaches the gate goes no further."""

PRELUDE = '''"""A coin to be guessed, and gates at which processes are killed."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, evaluate, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.types import Split, Task

GATES = Path("<gates>")


def gate(name):
    """Kill whom the gate of this name is open for, once; "stop" halts whoever reaches it."""
    try:
        os.rename(GATES / name, GATES / f"{name}.taken")
    except FileNotFoundError:
        return
    victim = (GATES / f"{name}.taken").read_text()
    if victim == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if victim != "pause":
        os.kill(os.getpid() if victim in ("self", "stop") else int(victim), signal.SIGKILL)
    signal.pause()  # nothing comes after the kill in this process, until it is ended too


class CoinEnvironment(Environment):
    inline = True
    version = "coin/1"

    def reset(self, seed, task):
        gate("reset")
        self.left = 2
        return f"coin {seed % 10}", {}

    def step(self, action):
        gate("step")
        self.left -= 1
        return "again", float(len(action) % 2), self.left == 0, False, {"success": False}


@dataclass(frozen=True)
class Coin(Domain):
    name: ClassVar[str] = "coin"
    environment: ClassVar[type[Environment]] = CoinEnvironment
    max_turns: ClassVar[int] = 3

    def make(self):
        return CoinEnvironment()

    def tasks(self, split, seed):
        gate("tasks")
        count = 0
        while split is Split.TRAIN or count < 4:
            yield Task(f"toss-{count}", self.name)
            count += 1

    def example_action(self, task, random):
        gate("warm start")
        return "heads"


async def tokens_seen(trajectory):
    gate("reward")
    return sum(turn.reward for turn in trajectory.turns) + sum(trajectory.token_ids) % 97 / 970


class Gated(Algorithm):
    def advantages(self, batch):
        gate("advantages")
        return super().advantages(batch)

    def token_loss(self, tokens):
        gate("training")
        return super().token_loss(tokens)


gated = Gated("gated", grpo().loss, grpo().advantage)


policy = Policy.tiny(hidden=32, layers=1, heads=2, warm_start=<warm_start>)
'''

PIPELINE = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, engine_workers=<engine_workers>)
scored = reward(trajectories, tokens_seen)
batches = buffer(scored, batch_size=8, alpha=<alpha>)
steps = train(batches, policy, gated, steps=<steps>, checkpoint_every=3)
scores = evaluate(policy, Coin(), every=<every>, episodes=2, max_tokens=6)
pipeline = Pipeline("coins", steps, scores)
"""


_DEFAULTS = {"engine_workers": 1, "alpha": 1, "steps": 4, "every": 4, "warm_start": 0}


def source(gates: Path, text: str = PIPELINE, **values: object) -> str:
    """A pipeline file; `values` stand in its angle brackets."""
    filled = PRELUDE + text
    for name, value in {**_DEFAULTS, "gates": gates, **values}.items():
        filled = filled.replace(f"<{name}>", str(value))
    return filled


def open_gate(gates: Path, name: str, victim: int | str = SELF) -> None:
    """Let the next one that reaches a gate kill a process."""
    waiting = gates / f".{name}"
    waiting.write_text(str(victim))
    os.rename(waiting, gates / name)


def was_taken(gates: Path, name: str) -> bool:
    """Whether somebody reached the gate while it was open."""
    return (gates / f"{name}.taken").exists()


def check_sound(run: Run, steps: int, *, batch_size: int = 8, alpha: int = 1) -> None:
    """What every finished run promises, whatever died on the way.

    Each attempt has one row, unless what ran it died when its group needed it no more; each step
    has one row and one full batch; no trajectory is in two batches; the bound holds; each version
    due is evaluated once.
    """
    now = run.snapshot()
    trajectories = now.trajectories.collect()
    assert trajectories["trajectory_id"].is_unique().all()
    rows = now.steps.sort("step").collect()
    assert rows["step"].to_list() == list(range(1, steps + 1))
    assert rows["exposed_pull_s"].is_between(0.0, rows["update_s"]).all()
    batches = now.batches.collect()
    assert batches["trajectory_id"].is_unique().all()
    sizes = batches.group_by("step").agg(pl.len()).sort("step")
    assert sizes.rows() == [(step, batch_size) for step in range(1, steps + 1)]
    trained = batches.join(trajectories, on="trajectory_id", how="left")
    age = trained["policy_version"] - trained["policy_version_start"]
    assert age.null_count() == 0
    assert 0 <= age.min() <= age.max() <= alpha  # type: ignore[operator]
    assert age.to_list() == trained["staleness"].to_list()
    assert trained["token_versions"].list.max().le(trained["policy_version"] + 1).all()
    evaluations = now.evaluations.collect()
    assert evaluations.select("policy_version", "domain", "metric").is_unique().all()
    attempts = trajectories.filter(split="train").group_by("group_id").agg(pl.col("attempt").sort())
    crashes = now.events.filter(pl.col("kind") == EventKind.CRASH).collect().height
    for group_id, found in attempts.iter_rows():
        lacking = set(range(max(found) + 1)) - set(found)
        assert not lacking or crashes, f"{group_id} lacks attempts {lacking} of {found}"
