"""Rows for the tests of the store: small, deterministic, of every table that they need."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.errors import StoreError
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import RunInfo, RunWriter
from rollart_flow.store.table_log import TableLog
from rollart_flow.types import (
    Event,
    EventKind,
    Outcome,
    Reason,
    Sampling,
    Split,
    Trajectory,
    Turn,
)

MOMENT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def info(name: str = "a") -> RunInfo:
    """Information of a run that this process owns."""
    return RunInfo(name=name, pipeline="test", seed=7, settings={"buffer.alpha": 1})


def new_writer(folder: Path, name: str = "a") -> RunWriter:
    """A new run in a folder."""
    return RunWriter.create(str(folder / name), info(name))


def trajectory(number: int, version: int = 0, tokens: int = 6) -> Trajectory:
    """One completed trajectory of a single turn; its values follow from its number."""
    observed = tokens // 2
    acted = tokens - observed
    return Trajectory(
        trajectory_id=f"t{number}",
        episode_id=f"t{number}",
        group_id=f"g{number // 4}",
        task_id=f"task{number // 4}",
        domain=("frozenlake", "arithmetic")[number % 2],
        attempt=number % 4,
        outcome=Outcome.COMPLETED,
        task='{"n": 1}',
        sampling=Sampling(stop_token_ids=(1,)),
        split=Split.TRAIN,
        env_seed=number,
        env_version="Test-v0",
        created_at=MOMENT,
        finished_at=MOMENT,
        reset_s=0.5,
        policy_version_start=version,
        policy_version_end=version,
        token_ids=tuple((number * 31 + i) % 1000 for i in range(tokens)),
        action_mask=(False,) * observed + (True,) * acted,
        logprobs=(0.0,) * observed + tuple(-((number + i) % 97) / 128 for i in range(acted)),
        token_versions=(-1,) * observed + (version,) * acted,
        turns=(Turn(0, tokens, "see", "do", 1.0, 0.1, 0.2, "H20", "w0", "stop"),),
        solved=True,
        reward=float(number % 2),
        reward_parts={"goal": 1.0},
        scored_at=MOMENT,
    )


def trajectories(numbers: range, version: int = 0, tokens: int = 6) -> pa.Table:
    """Uncommitted rows of `trajectories`."""
    return trajectories_table(trajectory(n, version, tokens) for n in numbers)


def batches(step: int, numbers: list[int], version: int = 0) -> pa.Table:
    """Uncommitted rows of `batches` for one step over trajectories that started at `version`."""
    served = max(0, step - 2)
    return to_table(
        "batches",
        [
            {
                "step": step,
                "position": position,
                "trajectory_id": f"t{number}",
                "group_id": f"g{number // 4}",
                "advantage": [number / 8],
                "weight": 1.0,
                "staleness": served - version,
                "policy_version": served,
                "trained_version": step - 1,
            }
            for position, number in enumerate(numbers)
        ],
    )


def step_row(step: int) -> pa.Table:
    """One uncommitted row of `steps`."""
    names = "loss grad_norm reward_mean staleness_mean ratio_mean ratio_max clip_fraction kl"
    seconds = "wait_s suspend_s update_s resume_s train_s publish_s step_s entropy learning_rate"
    row: dict[str, object] = dict.fromkeys((*names.split(), *seconds.split()), 0.25)
    row |= {"step": step, "policy_version": step, "staleness_max": 1, "zero_variance_groups": 0}
    row |= {"trajectories": 4, "tokens": 24, "action_tokens": 12, "threads": 1}
    row |= {"fingerprint": f"f{step}", "kernels": "{}", "finished_at": MOMENT}
    return to_table("steps", [row])


def events(*subjects: str) -> pa.Table:
    """Uncommitted rows of `events`."""
    return events_table(
        (MOMENT, Event(EventKind.DROP, subject, Reason.FILTERED, step=1)) for subject in subjects
    )


def seqs(frame: pl.LazyFrame) -> list[int]:
    """All seqs of a table, ascending."""
    return sorted(frame.select("seq").collect()["seq"].to_list())


def ids(frame: pl.LazyFrame) -> list[str]:
    """All trajectory ids of a table in order of seq."""
    return frame.sort("seq").select("trajectory_id").collect()["trajectory_id"].to_list()


@contextmanager
def failing_append(table: str) -> Iterator[None]:
    """Let the next append to a table fail before it reaches the log, as a broken network would."""
    real = TableLog.append

    def append(self: TableLog, *arguments: object) -> None:
        if self.table == table:
            raise StoreError(f"{table}: injected")
        real(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLog, "append", append)
        yield
