"""Buffer, buffer writers and senders as objects of one process, over real tables."""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.algorithms.filters import varied
from rollart_flow.attempt_rows import rows_beside
from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.operators.batch_rows import BatchRows
from rollart_flow.operators.buffer import BufferActor, BufferSettings
from rollart_flow.operators.buffer_writer import BufferWriterActor
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.operators.row_descriptions import filter_columns
from rollart_flow.operators.sink import RowSender
from rollart_flow.resources import Remote
from rollart_flow.resources.local import LocalActor, LoopThread, wait
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.schema import row_schema
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter
from rollart_flow.types import Batch, Split, Trajectory
from rollart_flow.types.verdicts import Verdict
from tests.builders import exchange, group, manifest, step_row, table, trajectory
from tests.runs import ids

SIZE = 4


class Processes:
    """A buffer and its writers."""

    def __init__(self, uri: str, *filters: pl.Expr, varied: pl.Expr | None = None) -> None:
        self.uri = uri
        self.loop = LoopThread()
        self.settings = BufferSettings(
            rollart(1),
            group_size=2,
            commit_rows=3,
            commit_ms=5.0,
            filters=tuple(NamedFilter("good", each) for each in filters),
            group_filters=() if varied is None else (NamedFilter("varied", varied),),
        )
        self.writers: list[Remote[BufferWriterActor]] = [
            Remote(
                LocalActor(
                    self.loop, partial(BufferWriterActor, uri, number, self.settings.columns)
                )
            )
            for number in range(2)
        ]
        self.buffer = self.started()

    def started(self) -> Remote[BufferActor]:
        """A buffer that takes the run over."""
        make = partial(BufferActor, self.uri, self.settings, None, self.writers)
        buffer: Remote[BufferActor] = Remote(LocalActor(self.loop, make))
        buffer.call.start()
        return buffer

    def send(self, *trajectories: Trajectory) -> None:
        """Return once the trajectories are durable, as a rollout process does."""
        sender = RowSender(self.buffer, self.writers)
        beside = {name: to_ipc(rows) for name, rows in rows_beside(trajectories).items()}
        wait(self.loop.start(sender.send(to_ipc(table(*trajectories)), beside)), "send")

    def batch(self, step: int = 1, version: int = 0) -> tuple[Batch, pa.Table]:
        """The batch of a step, and its rows as the consumer gets them."""
        rows = BatchRows(self.buffer, self.writers, self.uri)
        asked = rows.ask(step)
        batch = self.buffer.call.get_batch(step, version, SIZE)
        found = from_ipc(asked(batch))
        assert found == from_ipc(rows(batch)), "whoever asks early gets no other rows"
        return batch, found

    def held(self) -> int:
        """Number of rows that the writers hold, once they have done what the buffer asked for."""
        return sum(wait(self.loop.start(_held(each)), "held") for each in self.writers)


async def _held(writer: Remote[BufferWriterActor]) -> int:
    writer_itself: Any = writer.actor._made.result()
    return len(writer_itself._rows)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    run = str(tmp_path / "run")
    RunWriter.create(run, RunInfo("run", "coins", 0))
    return run


@pytest.fixture
def processes(uri: str) -> Iterator[Processes]:
    made = Processes(uri)
    yield made
    made.buffer.call.close(RunStatus.FINISHED)
    made.loop.close()


def test_rows_are_durable_once_and_batches_have_them_in_order(processes: Processes) -> None:
    first, second = trajectory("g00000001", 1, start=1, diff="+1"), trajectory("g00000000", 1)
    processes.send(first, second)
    processes.send(trajectory("g00000000", 0), trajectory("g00000001", 0, start=1))
    processes.send(second)
    rows = Run(processes.uri).trajectories.sort("seq").collect()
    assert len(rows) == rows["trajectory_id"].n_unique() == SIZE
    assert rows["seq"].to_list() == list(range(rows["seq"][0], rows["seq"][0] + SIZE))
    batch, given = processes.batch(version=1)
    assert given["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
    assert given["staleness"].to_pylist() == list(batch.staleness)
    names = [name for name in row_schema("trajectories").names if name != "diff"]
    assert given.column_names == [*names, "staleness"]
    assert rows["diff"].to_list() == ["+1", None, None, None]
    stored = rows.select(pl.exclude("seq", "committed_at")).to_dicts()
    by_id = {row["trajectory_id"]: row for row in stored}
    for row in given.to_pylist():
        of_table = by_id[row["trajectory_id"]]
        assert (row["token_ids"], row["logprobs"]) == (of_table["token_ids"], of_table["logprobs"])


def test_writers_hold_what_is_pending_or_untrained_and_nothing_else(processes: Processes) -> None:
    processes.send(*group("g00000000"), *group("g00000001"))
    processes.send(*group("g00000000"))
    processes.send(trajectory("g00000002", 0))
    assert processes.held() == SIZE + 1
    batch, _ = processes.batch()
    assert processes.held() == SIZE + 1
    processes.buffer.call.commit({"batches": to_ipc(manifest(1, list(batch.trajectory_ids)))})
    assert processes.held() == SIZE + 1
    processes.buffer.call.commit({"steps": to_ipc(step_row(1))})
    assert processes.held() == 1


def test_rows_of_an_evaluation_are_committed_beside_described_ones(processes: Processes) -> None:
    async def both() -> None:
        sender = RowSender(processes.buffer, processes.writers)
        scored = {"trajectories": to_ipc(table(trajectory("e00000000", 0, split=Split.EVALUATION)))}
        await asyncio.gather(
            *(sender.send(to_ipc(table(trajectory("g00000000", each)))) for each in range(2)),
            processes.buffer.call.commit.start(scored),
        )

    wait(processes.loop.start(both()), "both")
    assert sorted(ids(Run(processes.uri).trajectories)) == [
        "e00000000-00", "g00000000-00", "g00000000-01",
    ]  # fmt: skip


def test_rows_that_a_writer_lost_before_their_commit_are_sent_again(processes: Processes) -> None:
    lost: list[bytes] = []

    async def put(data: bytes, beside: Mapping[str, bytes] | None) -> None:
        if not lost:
            lost.append(data)
            for writer in processes.writers:
                await writer.call.clear.start()
        await real(data, beside)

    actor = processes.buffer.actor._made.result()
    real, actor.put = actor.put, put
    processes.send(*group("g00000000"))
    assert lost
    assert ids(Run(processes.uri).trajectories) == ["g00000000-00", "g00000000-01"]


def judged(group_id: str, attempt: int) -> Trajectory:
    """An attempt with a verdict of its environment and two parts of its reward."""
    verdicts = (Verdict(key="test_a", passed=False, message="1 != 2"),)
    parts = {"form": 0.5, "goal": 0.0}
    return trajectory(
        group_id, attempt, verdicts=verdicts, verifier="v1", diff="+", reward_parts=parts
    )


def test_verdicts_are_committed_once_with_their_trajectories(processes: Processes) -> None:
    both = [judged("g00000000", attempt) for attempt in range(2)]
    processes.send(*both, trajectory("g00000001", 0))
    processes.send(*both, judged("g00000002", 0))
    processes.buffer = processes.started()
    processes.send(*both)
    run = Run(processes.uri)
    rows = run.verdicts.sort("seq").collect()
    assert len(rows) == 9
    assert rows.select("trajectory_id", "source", "key").rows() == [
        (name, source, key)
        for name in ("g00000000-00", "g00000000-01", "g00000002-00")
        for source, key in (("environment", "test_a"), ("reward", "form"), ("reward", "goal"))
    ]
    assert rows["verifier"].to_list() == ["v1", None, None] * 3
    ends = run.trajectories.collect().select("trajectory_id", end="committed_at")
    assert (rows.join(ends, on="trajectory_id")["end"] == rows["committed_at"]).all()


def test_exchanges_are_committed_once_with_their_attempts(processes: Processes) -> None:
    def captured(group_id: str, attempt: int, calls: int) -> Trajectory:
        return trajectory(group_id, attempt, exchanges=tuple(map(exchange, range(calls))))

    both = [captured("g00000000", attempt, 2) for attempt in range(2)]
    processes.send(*both, trajectory("g00000001", 0))
    processes.send(captured("g00000000", 0, 3), captured("g00000002", 0, 1))
    run = Run(processes.uri)
    rows = run.exchanges.sort("seq").collect()
    calls = [("g00000000-00", 0), ("g00000000-00", 1), ("g00000000-01", 0), ("g00000000-01", 1)]
    assert rows.select("episode_id", "number").rows() == [*calls, ("g00000002-00", 0)]
    before = run.as_of(seq=int(rows["seq"][0]) - 1)
    assert before.exchanges.collect().is_empty()


def test_committed_rows_that_a_writer_lost_are_read_from_the_table(processes: Processes) -> None:
    processes.send(*group("g00000000"))
    for writer in processes.writers:
        writer.call.clear()
    processes.send(*group("g00000001"))
    batch, rows = processes.batch(version=1)
    assert rows["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
    assert rows["token_ids"].to_pylist() == [[1, 2, 3, 4, each % 2] for each in range(SIZE)]
    assert rows["staleness"].to_pylist() == [1] * SIZE


def test_a_buffer_that_takes_over_goes_on_with_the_same_writers(processes: Processes) -> None:
    processes.send(*group("g00000000"), trajectory("g00000001", 0))
    processes.buffer = processes.started()
    processes.send(*group("g00000000"))
    processes.send(trajectory("g00000001", 1))
    batch, rows = processes.batch()
    assert rows["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
    assert len(ids(Run(processes.uri).trajectories)) == SIZE


def test_filters_see_the_columns_that_they_name(uri: str) -> None:
    long = pl.col("token_ids").list.len() > 0
    made = Processes(uri, (pl.col("reward") >= 0) & long, varied=varied())
    assert {"token_ids", "reward"} <= set(made.settings.columns)
    made.send(*group("g00000000"))
    made.send(trajectory("g00000001", 0, reward=-1.0))
    for name in ("g00000002", "g00000003"):
        made.send(*(trajectory(name, attempt, reward=float(attempt)) for attempt in range(2)))
    batch, _ = made.batch()
    assert set(batch.group_ids) == {"g00000002", "g00000003"}
    assert made.held() == SIZE
    made.buffer.call.close(RunStatus.FINISHED)
    made.loop.close()


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        (pl.any_horizontal(pl.all().is_null()) & (pl.col("reward") > 0), None),
        (pl.col("reward") > pl.col("reward").mean().over("group_id"), {"reward", "group_id"}),
        (pl.lit(True), set()),
    ],
)
def test_a_filter_that_selects_by_a_rule_gets_all_columns(
    expression: pl.Expr, columns: set[str] | None
) -> None:
    every = set(row_schema("trajectories").names)
    assert set(filter_columns([NamedFilter("some", expression)])) == (
        every if columns is None else columns
    )
