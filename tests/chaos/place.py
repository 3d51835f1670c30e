"""Where a scenario happens: a folder with a store, a pipeline file, and the record of its runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rollart_flow.store import Run, open_run
from tests.chaos.forked import ForkedShell
from tests.chaos.held import Held, Record, check_held
from tests.chaos.hooks import wiretap
from tests.runner.shell import ROOT, Shell
from tests.runner.world import source

Variables = Mapping[str, str]
"""Environment variables."""
NONE: Variables = MappingProxyType({})
NAME = "coins"
NUDGE = "ROLLART_CHAOS_NUDGE"
"""Factor of the loss: other than 1, a step recomputed differs, as on another processor."""

PIPELINE = """
from dataclasses import replace


class Nudged(Gated):
    def token_loss(self, tokens):
        found = super().token_loss(tokens)
        return replace(found, loss=found.loss * float(os.environ.get("ROLLART_CHAOS_NUDGE", "1")))


nudged = Nudged("nudged", grpo().loss, grpo().advantage)
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, engine_workers=<engine_workers>)
scored = reward(trajectories, tokens_seen)
batches = buffer(scored, batch_size=8, alpha=<alpha>)
steps = train(
    batches, policy, nudged, steps=<steps>, checkpoint_every=<checkpoint_every>, keep_versions=2
)
scores = evaluate(policy, Coin(), every=<every>, episodes=2, max_tokens=6)
pipeline = Pipeline("coins", steps, scores)
"""
UNEVALUATED = PIPELINE.replace("scores = eval", "_ = eval").replace("steps, scores", "steps")
"""The same without evaluations, which take three processes more on Ray."""


class Place:
    """The folder of one scenario, and the runs that it starts there.

    Args:
        folder: an empty folder of this machine.
        store: address of the store; a folder in `folder` by default.
        executor: executor of the runs.
        environment: environment variables of all processes, beside those of this process.
        forked: whether inline runs are forked (`tests.chaos.forked`): their fault must not depend
            on how their process started, or on memory that they have to themselves.
    """

    def __init__(
        self,
        folder: Path,
        *,
        store: str | Path | None = None,
        executor: str = "inline",
        environment: dict[str, str] | None = None,
        forked: bool = True,
    ) -> None:
        self.folder = folder
        self._forked = forked
        self.store = str(folder / "store" if store is None else store)
        self.record = Record(folder / "record")
        self.executor = executor
        self.steps = 0
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(Path(wiretap.__file__).parent), str(ROOT))),
            wiretap.FOLDER: str(self.record.folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **(environment or {}),
        }

    @property
    def uri(self) -> str:
        """Address of the run."""
        return f"{self.store}/{NAME}"

    def wait_for_tenth(self, driver: Shell, number: int) -> None:
        """Wait until a driver has trained so many tenths of its steps, which is when it says so."""
        driver.wait_for(f"step {number * self.steps // 10}/")

    def command(
        self,
        *arguments: str,
        executor: str | None = None,
        through: tuple[str, ...] = (),
        more: Variables = NONE,
    ) -> Shell:
        """Start `rollart`, with an executor if not the place's own, through another command, with
        more environment variables."""
        executor = executor or self.executor
        environment = {**self.environment, **more}
        start = ForkedShell if self._forked and executor == "inline" and not through else Shell
        arguments += ("--executor", executor)
        return start(*arguments, store=self.store, through=through, environment=environment)

    def run(
        self,
        text: str = PIPELINE,
        *,
        steps: int = 6,
        values: Mapping[str, object] | None = None,
        through: tuple[str, ...] = (),
        more: Variables = NONE,
    ) -> Shell:
        """Start the run of a pipeline, whose angle brackets `values` fill."""
        self.steps = steps
        default = {"every": steps, "checkpoint_every": 3}
        file = self.folder / "coins.py"
        file.write_text(source(self.folder, text, **{**default, "steps": steps, **(values or {})}))
        return self.command("run", str(file), "--name", NAME, through=through, more=more)

    def resume(self, *options: str, executor: str | None = None, more: Variables = NONE) -> Shell:
        """Start to resume the run."""
        return self.command("resume", NAME, *options, executor=executor, more=more)

    def finish(self, *options: str, executor: str = "inline", more: Variables = NONE) -> None:
        """Resume the run to its end, inline by default, whatever executor began it."""
        with self.resume(*options, executor=executor, more=more) as driver:
            ended(driver)

    def opened(self) -> Run:
        """The run, to be read."""
        return open_run(self.uri)

    def held(self, *, batch_size: int = 8, diverged: bool = False) -> Held:
        """Check the finished run; see `check_held`."""
        return check_held(
            self.uri, self.record, self.steps, batch_size=batch_size, diverged=diverged
        )


def at(point: str, number: int, action: str = "kill") -> dict[str, str]:
    """Environment variables that make a fault at a point of `wiretap.POINTS`."""
    assert point in wiretap.POINTS
    return {wiretap.AT: f"{point} {number} {action}"}


def last_line(driver: Shell) -> str:
    """The last line that a command wrote, which is its error if it failed."""
    return (driver.said.splitlines() or [""])[-1]


def ended(driver: Shell, *codes: int) -> int:
    """Wait for the end of a command, which must have one of these exit codes, or 0."""
    code = driver.end()
    assert code in (codes or (0,)), f"ended with {code}: {last_line(driver)}\n{driver.said}"
    return code
