"""A source whose process dies is asked for all its blocks again by another process.

The coordinator is a stand-in: `tests/runner/test_restarts` has the real one, and Ray Data's part.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollart_flow.errors import BlockOverError, UnknownClientError
from rollart_flow.operators import sources
from rollart_flow.operators.sources import Admitted, Batches, Versions, read_assignments
from rollart_flow.types import Assignment, Batch, Sampling, Task

BLOCKS = [[f"g{index}-{attempt}" for attempt in range(2)] for index in range(4)]


def assignment(trajectory_id: str) -> Assignment:
    return Assignment(trajectory_id, "g", Task("t", "d"), 0, 0, Sampling())


class Coordinator:
    """What the sources ask, of a run at some moment."""

    def __init__(self, *, over: int = 0, trained: int = 0, known: bool = True) -> None:
        self.over = over
        """Number of blocks of attempts that are over."""
        self.trained = trained
        self.known = known
        self.adopted: list[list[str]] = []

    @property
    def call(self) -> Any:
        return self

    def admit(self, source: str, index: int, most: int) -> tuple[Assignment, ...]:
        if not self.known:
            raise UnknownClientError("report")
        if index < self.over:
            raise BlockOverError("over")
        return tuple(map(assignment, BLOCKS[index])) if index < len(BLOCKS) else ()

    def adopt(self, source: str, blocks: list[list[str]]) -> None:
        self.known = True
        self.adopted = [list(block) for block in blocks]

    def next_batch(self, step: int) -> Batch | None:
        if step <= self.trained:
            raise BlockOverError("over")
        return cast(Batch, SimpleNamespace(step=step, policy_version=0, trained_version=step - 1))

    def recorded(self, version: int) -> bool:
        return version <= self.trained


def ids(source: Admitted, count: int) -> list[list[str]]:
    blocks = [source(index) for index in range(count)]
    return [[] if b is None else [a.trajectory_id for a in read_assignments(b)] for b in blocks]


def test_the_task_source_passes_over_the_blocks_that_are_over(tmp_path: Path) -> None:
    coordinator: Any = Coordinator()
    source = Admitted(coordinator, "tasks-0", 3, 2, tmp_path / "notes")
    assert ids(source, 2) == BLOCKS[:2]
    coordinator.over = 1
    again = Admitted(coordinator, "tasks-0", 3, 2, tmp_path / "notes")
    assert ids(again, 3) == [[], *BLOCKS[1:3]]
    assert again(3) is None, "the source ends after three blocks"


def test_the_task_source_reports_its_blocks_to_a_coordinator_that_was_lost(tmp_path: Path) -> None:
    coordinator: Any = Coordinator()
    source = Admitted(coordinator, "tasks-0", 9, 2, tmp_path / "notes")
    ids(source, 2)
    coordinator.known = False
    assert ids(source, 3)[2:] == BLOCKS[2:3]
    assert coordinator.adopted == BLOCKS[:2]
    lost: Any = Coordinator(over=3, known=False)
    again = Admitted(lost, "tasks-0", 9, 2, tmp_path / "notes")
    assert ids(again, 4) == [[], [], [], BLOCKS[3]]
    assert lost.adopted == BLOCKS[:3], "what the lost process took"


def test_the_task_source_reports_only_its_newest_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_REPORTED", 2)
    coordinator: Any = Coordinator()
    source = Admitted(coordinator, "tasks-0", 9, 2, tmp_path / "notes")
    ids(source, 3)
    coordinator.known = False
    assert ids(source, 4)[3] == BLOCKS[3]
    assert coordinator.adopted == [[], *BLOCKS[1:3]]
    lost: Any = Coordinator(over=4, known=False)
    ids(Admitted(lost, "tasks-0", 9, 2, tmp_path / "notes"), 1)
    assert lost.adopted == [[], [], *BLOCKS[2:4]]


def test_the_batch_source_passes_over_the_steps_that_are_trained() -> None:
    coordinator: Any = Coordinator(trained=2)
    asked = []

    class Rows:
        def ask(self, step: int) -> Any:
            asked.append(step)
            return self

        def __call__(self, batch: Batch) -> bytes:
            return b"rows"

    source = Batches(coordinator, cast(Any, Rows()), 1, steps=3)
    blocks = [source(index) for index in range(4)]
    assert asked == [1, 2, 3], "no batch will be formed after the last step"
    steps = [[] if block is None else block["step"].to_pylist() for block in blocks]
    assert steps == [[], [], [3], [4]]


def test_the_version_source_gives_the_same_versions_whatever_was_evaluated() -> None:
    coordinator: Any = Coordinator(trained=6)
    for _ in range(2):
        source = Versions(coordinator, (0, 3, 6, 9))
        blocks = [source(index) for index in range(4)]
        assert [b and b["version"].to_pylist() for b in blocks] == [[0], [3], [6], None]
    assert Versions(coordinator, (0,))(1) is None
