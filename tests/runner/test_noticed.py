"""Errors in the logs of a run, told once each."""

from pathlib import Path

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.noticed import LoggedErrors, telling_errors
from rollart_flow.store.logs import append_to_log, begin_logs, read_logs
from rollart_flow.telemetry import Progress, ProgressKind

AT = "2026-01-01T00:00:00Z"


def logged(run: str, text: str) -> None:
    """Append lines to the log of a rollout process."""
    append_to_log(run, "rollout", 7, text)


def test_an_error_is_told_once_with_the_place_to_look(tmp_path: Path) -> None:
    run = str(tmp_path / "mine")
    Path(run).mkdir()
    begin_logs(run)
    logged(run, f"{AT} ERROR of an earlier driver\n")
    errors = LoggedErrors(run)
    logged(run, f"{AT} WARNING larger: a warning\n{AT} ERROR larger: failed at step 3\nTraceback\n")
    assert errors.new() == [
        "rollout: larger: failed at step 3 (rollart logs mine --worker rollout)"
    ]
    logged(run, f"{AT} ERROR larger: failed at step 4\n")
    append_to_log(run, "coordinator", 8, f"{AT} ERROR generation-0 died: killed")
    assert errors.new() == []  # the line is not whole yet
    append_to_log(run, "coordinator", 8, "\n")
    assert len(errors.new()) == 1


def test_what_is_logged_last_is_told_before_the_block_ends(tmp_path: Path) -> None:
    run = str(tmp_path)
    begin_logs(run)
    told: list[Progress] = []
    with telling_errors(run, told.append):
        append_to_log(run, "trainer-0", 9, f"{AT} ERROR no memory\n")
    assert [progress.kind for progress in told] == [ProgressKind.NOTE]
    assert told[0].text.startswith("trainer-0: no memory")


FAILING = """
from dataclasses import dataclass
from itertools import count
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.types import Task


class CoinEnvironment(Environment):
    def reset(self, seed, task):
        print(f"tossed {task}\\n", end="")  # in one piece: threads write at the same time
        return "toss", {}

    def step(self, action):
        if not hasattr(CoinEnvironment, "failed"):
            CoinEnvironment.failed = True
            return self.toss()
        return "", float(len(action)), True, False, {}

    def toss(self):
        raise ValueError("the coin is lost")


@dataclass(frozen=True)
class Coin(Domain):
    name = "coin"
    environment = CoinEnvironment

    def tasks(self, split, seed):
        for n in count():
            yield Task(f"coin/{n}", self.name, str(n))


policy = Policy.tiny(hidden=32)
batches = buffer(reward(rollout(tasks(Coin(), group_size=2), policy, max_tokens=2)), batch_size=4)
pipeline = Pipeline("coin", train(batches, policy, grpo(), steps=2))
"""


def test_an_environment_that_raises_is_told_once_and_its_traceback_is_kept(
    tmp_path: Path,
) -> None:
    notes: list[str] = []

    def note(progress: Progress) -> None:
        if progress.kind is ProgressKind.NOTE:
            notes.append(progress.text)

    loaded = load_source(FAILING, tmp_path / "coin.py")
    result = runner.run(
        loaded, store=str(tmp_path), name="mine", executor="inline", on_progress=note
    )
    told = [line for line in notes if "the coin is lost" in line]
    assert told == [
        "driver: coin: failed, CoinEnvironment: ValueError: the coin is lost"
        " (rollart logs mine --worker driver)"
    ]
    (log,) = read_logs(result.uri)
    assert "in toss" in log.text()
    assert "tossed 0" in log.text()
