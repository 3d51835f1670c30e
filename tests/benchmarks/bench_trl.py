"""One small job beside TRL's GRPOTrainer: trajectories/s, and seconds until the last step.

Single-turn arithmetic with a policy of 0.15M parameters: same initial weights, prompts, sampling,
batch and optimizer updates. TRL, its newest release in a venv that this benchmark keeps in the
cache folder of the user, generates and trains in turns and stores nothing; `rollart run` stores
everything and is one version stale. All take turns in one run.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import polars as pl

from rollart_flow.envs import Arithmetic
from rollart_flow.envs.arithmetic import solve
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.store import open_run
from rollart_flow.types import Split
from tests.benchmarks.records import CannotRunError, Record, record

TRL = "1.16.0"
PACKAGES = (
    f"trl=={TRL}",
    *(f"{name}=={version(name).split('+')[0]}" for name in ("torch", "transformers")),
)
SIDE = Path(__file__).with_name("trl_side.py")
TURNS = 3
STEPS, WARM_STEPS = 40, 5
BATCH, GROUP, MINIBATCHES, EPOCHS, TOKENS = 128, 8, 4, 2, 8
LR, CLIP, CLIP_HIGH, CLIP_NORM = 1e-3, 0.2, 0.28, 1.0
STEADY = {"inline": 1.0, "ray": 0.5}
"""Least steady rate of each executor, relative to TRL's."""

DOMAIN = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
PIPELINE = f"""
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny()
prompts = tasks({DOMAIN}, group_size={GROUP})
scored = reward(rollout(prompts, policy, max_tokens={TOKENS}))
loss = grpo(clip={CLIP}, clip_high={CLIP_HIGH})
steps = train(
    buffer(scored, batch_size={BATCH}, alpha=1), policy, loss, steps={STEPS},
    minibatches={MINIBATCHES}, epochs={EPOCHS}, optimizer=adamw(lr={LR}, clip_norm={CLIP_NORM}),
)
pipeline = Pipeline("arithmetic", steps)
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one run, in seconds since its command was given."""

    first: float
    """End of the imports; ours: start of the run."""
    warm: float
    """End of step `WARM_STEPS`."""
    last: float
    """End of the last step."""

    @property
    def steady(self) -> float:
        """Trajectories per second after the first steps."""
        return (STEPS - WARM_STEPS) * BATCH / (self.last - self.warm)


def run() -> Iterator[Record]:
    """Run both sides in turns, and compare their medians."""
    python = trl_python()
    timings: dict[str, list[Timing]] = {name: [] for name in ("trl", *STEADY)}
    with TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for name, found in timings.items():
                place = Path(folder) / f"{name}-{turn}"
                place.mkdir()
                found.append(_trl(python, place) if name == "trl" else _ours(name, place))
    for executor, least in STEADY.items():
        yield from _compared(executor, least, timings[executor], timings["trl"])


def _compared(
    executor: str, least: float, ours: list[Timing], theirs: list[Timing]
) -> Iterator[Record]:
    our_rate, their_rate = (median(one.steady for one in side) for side in (ours, theirs))
    yield record(
        f"trl: {executor}, trajectories/s over those of GRPOTrainer",
        our_rate / their_rate,
        "x",
        at_least=least,
        peer=f"{our_rate:.0f}/s with everything stored; TRL {TRL} {their_rate:.0f}/s",
    )
    our_s, their_s = (median(one.last for one in side) for side in (ours, theirs))
    after = (median(one.last - one.first for one in side) for side in (ours, theirs))
    yield record(
        f"trl: {executor}, from the command to step {STEPS}, over GRPOTrainer",
        our_s / their_s,
        "x",
        at_most=1.0 if executor == "inline" else None,
        peer="{:.1f} s, {:.1f} s; after the imports {:.1f} s, {:.1f} s".format(
            our_s, their_s, *after
        ),
    )


def _ours(executor: str, place: Path) -> Timing:
    file = place / "pipeline.py"
    file.write_text(PIPELINE)
    rollart = str(Path(sys.executable).with_name("rollart"))
    began = time.time()
    call([rollart, "run", str(file), "--executor", executor, "--store", str(place), "--name=run"])
    run = open_run(str(place / "run"))
    ends = run.steps.sort("step").select(pl.col("finished_at").dt.epoch("us") / 1e6).collect()
    at = ends["finished_at"].to_list()
    first = run.info.created_at.timestamp()
    return Timing(first - began, at[WARM_STEPS - 1] - began, at[STEPS - 1] - began)


def _trl(python: Path, place: Path) -> Timing:
    materialize(Policy.tiny(), place / "policy")
    problems = [
        json.loads(task.payload)["problem"]
        for task in islice(DOMAIN.tasks(Split.TRAIN, 0), STEPS * BATCH // GROUP)
    ]
    job = {
        "folder": str(place / "policy"),
        "problems": problems,
        "answers": [solve(problem) for problem in problems],
        "first_ids": load_codec(place / "policy").encode_observation(problems[0], first=True),
        "penalty": DOMAIN.format_penalty,
        "steps": STEPS,
        "updates": MINIBATCHES * EPOCHS,
        "minibatches": MINIBATCHES,
        "output": str(place / "output"),
        "settings": {
            "per_device_train_batch_size": BATCH // MINIBATCHES,
            "num_generations": GROUP,
            "max_completion_length": TOKENS,
            "temperature": 1.0,
            "learning_rate": LR,
            "weight_decay": 0.0,
            "max_grad_norm": CLIP_NORM,
            "epsilon": CLIP,
            "epsilon_high": CLIP_HIGH,
        },
    }
    (place / "job.json").write_text(json.dumps(job))
    began = time.time()
    told = call([str(python), str(SIDE), str(place / "job.json")])
    lines = [json.loads(line) for line in told.splitlines() if line.startswith('{"batch"')]
    ends = {line["batch"]: line["at"] - began for line in lines}
    return Timing(ends[0], ends[WARM_STEPS], ends[STEPS])


def trl_python() -> Path:
    """Return the Python of a venv with TRL, which is made at the first call."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = caches / "rollart_flow" / "-".join(package.replace("==", "-") for package in PACKAGES)
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        try:
            call([sys.executable, "-m", "venv", "--clear", str(folder)])
            call([str(python), "-m", "pip", "install", "--quiet", *PACKAGES])
        except RuntimeError as error:
            raise CannotRunError(f"no venv with {' '.join(PACKAGES)}: {error}") from error
        ready.touch()
    return python


def call(command: list[str]) -> str:
    """Run a command and return its output.

    Raises:
        RuntimeError: it failed; the message ends with the last line of its output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next(reversed((done.stderr or done.stdout).strip().splitlines()), "")
        raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}: {last}")
    return done.stdout
