"""Batches of stored rows with the rewards of a rescoring."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.operators.batch_columns import SOURCE_COLUMNS
from rollart_flow.operators.stored_rows import StoredRows, StoredSource
from rollart_flow.pipeline.stored import stored
from rollart_flow.rows import events_table
from rollart_flow.schema import to_table
from rollart_flow.store import open_run
from rollart_flow.store.pins import described_pins, pin
from rollart_flow.types import Event, EventKind
from rollart_flow.types.verdicts import Verdict, VerdictKind
from rollart_flow.verdict_rows import judged_rows
from tests.builders import MOMENT, batch_row, table, trajectory
from tests.runs import new_writer


def source(uri: str, rescored: str) -> StoredSource:
    return StoredSource(
        name="stored", runs=(pin(uri),), filter=pl.col("reward") > 1, prefer=None, best=None,
        count=1, seed=0, split="train", exempt=True, paired=False, grouped=False, bound=None,
        rescored=rescored,
    )  # fmt: skip


@pytest.fixture
def rescored_run(tmp_path: Path) -> str:
    """Address of a run whose attempts the rescoring `strict` judged, but for the last one."""
    made = [trajectory("g", 0, reward=5.0), trajectory("g", 1, reward=0.0), trajectory("g", 2)]
    values = {"g-00": 0.5, "g-01": 2.0}
    rows = [
        row
        for each in made
        if each.trajectory_id in values
        for row in judged_rows(
            each,
            [Verdict(key="reward", kind=VerdictKind.REWARD, value=values[each.trajectory_id])],
            source="strict",
            judged_at=MOMENT,
        )
    ]
    writer = new_writer(tmp_path)
    writer.commit("trajectories", table(*made))
    writer.commit("verdicts", to_table("verdicts", rows))
    writer.close()
    return writer.uri


def test_rows_are_filtered_and_trained_on_by_the_rewards_of_the_rescoring(
    rescored_run: str,
) -> None:
    drawn = StoredRows("", source(rescored_run, "strict")).rows(1, (0, 0))
    assert drawn["reward"].to_pylist() == [2.0]
    assert drawn["trajectory_id"].to_pylist()[0].endswith("g-01")
    with pytest.raises(SettingsError, match="no rescoring 'lax'; it has strict"):
        StoredRows("", source(rescored_run, "lax")).check()


def test_a_stored_batch_has_the_rewards_that_its_step_was_trained_with(
    rescored_run: str, tmp_path: Path
) -> None:
    pinned = source(rescored_run, "strict")
    drawn = StoredRows("", pinned).rows(1, (0, 0))
    learner = new_writer(tmp_path, "learner")
    began = Event(EventKind.RUN, "learner", detail=described_pins({"stored": pinned.runs}))
    learner.commit("events", events_table([(MOMENT, began)]))
    rows = [
        batch_row(1, 0, f"other/g-0{n}", "other/g", episode_id=f"other/g-0{n}", source_seq=n + 1)
        | {"position": n, "source_run": rescored_run, "source_version": 1}
        for n in range(2)
    ]
    rows[1] |= {name: drawn[name].to_pylist()[0] for name in SOURCE_COLUMNS}
    learner.commit("batches", to_table("batches", rows))
    learner.close()
    batch = open_run(learner.uri).batch(1)
    assert batch["reward"].to_pylist() == [5.0, 2.0]
    assert batch["source_rescored"].to_pylist() == [None, "strict"]


def test_a_run_that_goes_on_has_no_rescoring() -> None:
    with pytest.raises(PipelineError, match="has no rescoring"):
        stored("self", rescored="strict")
