"""Whether what was in flight went on while processes of a run died and came back."""

from collections import Counter
from datetime import datetime
from pathlib import Path

import polars as pl

from rollart_flow.store import Run, RunStatus
from rollart_flow.types import EventKind
from tests.runner.local import events
from tests.runner.world import check_sound

RESETS = "resets"
_LOGGED = f'''

class LoggedEnvironment(CoinEnvironment):
    def reset(self, seed, task):
        with open(GATES / "{RESETS}", "a") as file:
            file.write(f"{{seed}}\\n")
        return super().reset(seed, task)


@dataclass(frozen=True)
class Logged(Coin):
    environment: ClassVar[type[Environment]] = LoggedEnvironment

    def make(self):
        return LoggedEnvironment()

'''
"""A domain whose environment appends to a file whenever it is reset."""


def logged(text: str) -> str:
    """A pipeline of `tests.runner.world` whose attempts are logged."""
    return _LOGGED + text.replace("Coin()", "Logged()")


def check_nothing_lost(run: Run, gates: Path, steps: int, died: list[str]) -> None:
    """Each attempt was made once, whatever died meanwhile, and has a row of its own result.

    Args:
        run: a run of a `logged` pipeline.
        gates: folder of the log.
        steps: steps of the run.
        died: names of the processes of which the run reports that they died, in order.
    """
    check_sound(run, steps)
    assert run.info.status is RunStatus.FINISHED
    assert events(run, EventKind.CRASH)["subject"].to_list() == died
    rows = run.trajectories.collect()
    assert set(rows.filter(split="train")["outcome"]) <= {"completed", "truncated", "cancelled"}
    check_made_once(rows, gates)


def check_made_once(rows: pl.DataFrame, gates: Path, until: datetime | None = None) -> None:
    """Each attempt of a group was made once and has a row.

    Args:
        rows: trajectories of a run of a `logged` pipeline.
        gates: folder of the log.
        until: only groups are looked at whose attempts had all ended by then.
    """
    training = rows.filter(split="train")
    if until is not None:
        training = training.filter(pl.col("finished_at").max().over("group_id") < until)
    assert training.height
    for group_id, attempts in training.group_by("group_id").agg("attempt").iter_rows():
        assert sorted(attempts) == list(range(len(attempts))), group_id
    resets = Counter(int(seed) for seed in (gates / RESETS).read_text().split())
    again = set(rows.filter(split="evaluation")["env_seed"])
    made = Counter(training["env_seed"].to_list())
    seen = set(resets) if until is None else set(made)
    twice = {seed for seed in seen if resets[seed] > made[seed]}
    assert twice <= again, "an attempt ran twice"
