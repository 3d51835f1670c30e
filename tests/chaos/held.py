"""The common check of all scenarios: nothing acknowledged is lost or doubled, and the run is sound.

`Record` is what the processes of a run noted while they ran (`tests.chaos.hooks.wiretap`), and is
compared with the tables that the run leaves.
"""

import json
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_flow.replay.step import replay_step
from rollart_flow.store import RunStatus, open_run
from tests.runner.world import check_sound


@dataclass(frozen=True, slots=True)
class Held:
    """What a run held through a fault: a row of the table of `make chaos`."""

    acknowledged: int
    """Trajectories that a process of the run saw acknowledged."""
    lost: int
    """Acknowledged trajectories that are not in the table."""
    doubled: int
    """Rows of trajectories or steps that are there more than once."""
    repeated: int
    """Trainings of a step beyond its first, recorded or not."""
    recover_s: float | None
    """Longest time from a fault, or its end, to the next acknowledged trajectory."""
    note: str = ""
    """What else was seen."""

    @property
    def holds(self) -> bool:
        return self.lost == self.doubled == 0


class Record:
    """What processes noted in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def fault(self, what: str) -> None:
        """Note a fault that another process than those of the run made, or its end."""
        with (self.folder / "faults.jsonl").open("a") as lines:
            print(json.dumps({"at": time.monotonic(), "fault": what}), file=lines)

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines but those that a killed process has not completed."""
        for path in self.folder.glob("*.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    def acknowledged(self) -> set[str]:
        """Ids of the trajectories that were acknowledged."""
        return {each for line in self.lines() for each in line.get("trajectories", ())}

    def fingerprints(self) -> dict[int, set[str]]:
        """Fingerprints of the steps whose rows were acknowledged."""
        found: dict[int, set[str]] = {}
        for line in self.lines():
            if "step" in line:
                found.setdefault(line["step"], set()).add(line["fingerprint"])
        return found

    def repeated(self) -> int:
        """Trainings of a step beyond its first."""
        trained = [line["trained"] for line in self.lines() if "trained" in line]
        return len(trained) - len(set(trained))

    def recover_s(self) -> float | None:
        """Longest time from a fault to the next acknowledged trajectory."""
        lines = list(self.lines())
        acknowledged = sorted(line["at"] for line in lines if "trajectories" in line)
        faults = (line["at"] for line in lines if "fault" in line)
        after = [(fault, bisect_left(acknowledged, fault)) for fault in faults]
        return max(
            (acknowledged[n] - fault for fault, n in after if n < len(acknowledged)), default=None
        )


def check_held(
    uri: str, record: Record, steps: int, *, batch_size: int, diverged: bool = False
) -> Held:
    """Check a finished run against its record.

    Args:
        uri: address of the run, of the pipeline of `tests.chaos.place`.
        record: what its processes noted.
        steps: steps that the run has.
        batch_size: trajectories of each step.
        diverged: whether a resume was allowed to accept another recomputation than the recorded.

    Raises:
        AssertionError: a promise was broken; rows lost or doubled are figures of the result.
    """
    run = open_run(uri)
    assert run.info.status is RunStatus.FINISHED, f"it is {run.info.status}: {run.info.error}"
    now = run.snapshot()
    ids = now.trajectories.select("trajectory_id").collect()["trajectory_id"]
    numbers = now.steps.select("step").collect()["step"]
    acknowledged = record.acknowledged()
    held = Held(
        acknowledged=len(acknowledged),
        lost=len(acknowledged - set(ids)),
        doubled=len(ids) - ids.n_unique() + len(numbers) - numbers.n_unique(),
        repeated=record.repeated(),
        recover_s=record.recover_s(),
    )
    assert acknowledged, "no process noted what was acknowledged"
    if not held.holds:
        return held
    check_sound(run, steps, batch_size=batch_size)
    recorded = dict(now.steps.select("step", "fingerprint").collect().iter_rows())
    for step, seen in record.fingerprints().items():
        assert seen == {recorded[step]}, f"step {step} was acknowledged with other weights"
    if not diverged:
        replayed = replay_step(uri, steps)
        assert replayed.equal, f"step {steps} replayed differs: {replayed.difference}"
    return held
