"""Batches of attempts that sessions of the gateway recorded, as they are trained on.

An attempt counts once, whatever its builder made of its calls; what is withheld is not trained on;
tokens that rows share are computed once.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest

from rollart_flow.algorithms import grpo
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.operators.batch_columns import prepare
from rollart_flow.rows import samples, trajectories_table
from rollart_flow.simulation import run
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch
from rollart_flow.types import Trajectory
from tests.gateway.core.rig import ADDED, CODEC, Client, Rig, ScriptedEngine
from tests.sessions import rows_of, session_attempt, wall

GROUPS, SIZE = 8, 4


def refuse(rows: pa.Table) -> pa.Table:
    raise AssertionError("this estimator needs nothing of the trainer")


def trainable(branches: Sequence[Trajectory]) -> bool:
    return any(row.policy_version_start is not None for row in branches)


@pytest.fixture(scope="module")
def attempts() -> list[tuple[Trajectory, ...]]:
    """Groups of attempts, each with something to train on."""
    found = []
    for group in range(GROUPS):
        names = (f"g{group}-{number:02d}" for number in range(100))
        made = (
            session_attempt(name, 3, 1 + n % 4, reward=float(n % 2)) for n, name in enumerate(names)
        )
        fit = [branches for _, branches in zip(range(2 * SIZE), made, strict=False)]
        found += [branches for branches in fit if trainable(branches)][:SIZE]
    assert len(found) == GROUPS * SIZE
    return found


def table(attempts: Sequence[Sequence[Trajectory]]) -> pa.Table:
    rows = trajectories_table([row for branches in attempts for row in branches])
    return rows.append_column("staleness", pa.array([0] * rows.num_rows, pa.int32()))


def prepared(attempts: Sequence[Sequence[Trajectory]]) -> pa.Table:
    return prepare(grpo(), table(attempts), 9, refuse).rows


def test_an_attempt_is_one_sample_as_old_as_its_oldest_token(
    attempts: list[tuple[Trajectory, ...]],
) -> None:
    for sample, branches in zip(samples(table(attempts)), attempts, strict=True):
        acting = [
            version
            for row in branches
            for version, acts in zip(row.token_versions, row.action_mask, strict=True)
            if acts
        ]
        assert sample.trajectory_id == branches[0].trajectory_id
        assert sample.trainable
        assert sample.policy_version_start == min(acting)


def test_what_is_withheld_is_not_trained_on_and_all_else_is_once(
    attempts: list[tuple[Trajectory, ...]],
) -> None:
    rows = prepared(attempts)
    trained = {row["trajectory_id"]: sum(row["action_mask"]) for row in rows.to_pylist()}
    assert len(trained) == rows.num_rows
    assert all(trained.values())
    wanted = {row.trajectory_id: sum(row.action_mask) for each in attempts for row in each}
    assert trained == {name: count for name, count in wanted.items() if count}
    withheld = [row for each in attempts for row in each if row.reason is not None]
    assert withheld
    assert not {row.trajectory_id for row in withheld} & {*trained}


def test_an_attempt_weighs_once_whatever_the_number_of_its_rows(
    attempts: list[tuple[Trajectory, ...]],
) -> None:
    rows = prepared(attempts).to_pylist()
    totals, advantages = [], []
    for _, group in groupby(rows, key=lambda row: row["episode_id"]):
        mine = [*group]
        totals.append(sum(row["weight"] * sum(row["action_mask"]) for row in mine))
        (advantage,) = {value for row in mine for value in row["advantage"]}
        advantages.append((mine[0]["group_id"], mine[0]["reward"], advantage))
    assert len(totals) == GROUPS * SIZE
    assert {len(branches) > 1 for branches in attempts} == {True, False}
    counts = [sum(sum(row.action_mask) for row in branches) for branches in attempts]
    per_token = np.array(totals) / np.array(counts)
    assert np.allclose(per_token, per_token[0]), "a token of any attempt weighs the same"
    for _, group in groupby(advantages, key=lambda each: each[0]):
        values = {(reward, advantage) for _, reward, advantage in group}
        assert len(values) == len({reward for reward, _ in values}), "one for each reward"


def batch_of(attempts: Sequence[Sequence[Trajectory]]) -> TrainingBatch:
    return read_batch(prepared(attempts), grpo())


def distinct(batch: TrainingBatch) -> int:
    """Number of different beginnings of the rows, as far as training needs them."""
    starts, lengths = batch.tokens.starts, batch.used_lengths
    found: set[tuple[int, bytes]] = set()
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=False):
        row = batch.tokens.values[start : start + length]
        found |= {(place, row[: place + 1].tobytes()) for place in range(length)}
    return len(found)


def ordered(batch: TrainingBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows in the order of their tokens, as trainers pack them."""
    starts = batch.tokens.starts
    rows = [batch.tokens.values[starts[n] : starts[n + 1]].tolist() for n in range(batch.rows)]
    return np.array(sorted(range(batch.rows), key=rows.__getitem__))


def test_tokens_that_rows_share_are_computed_once(attempts: list[tuple[Trajectory, ...]]) -> None:
    for branches in attempts[:8]:
        batch = batch_of([branches])
        packed = batch.micro_batch(ordered(batch), CODEC.vocab_size)
        assert packed.token_ids.shape[1] == distinct(batch)


def conversation(turns: int, *, per_request: bool) -> tuple[Trajectory, ...]:
    """An attempt of one conversation."""

    async def play() -> tuple[Trajectory, ...]:
        rig = Rig(ScriptedEngine(*[ADDED] * turns), CaptureLimits(per_request=per_request))
        client = Client(rig.session.answer)
        for _ in range(turns):
            await client.turn()
            client.results("3")
        rows = await rows_of(rig, "c-0")
        return with_exchanges(rows, rig.exchanges, rig.codec, wall)

    return run(play())


def test_a_row_for_each_call_costs_and_weighs_what_one_row_for_all_does() -> None:
    turns = 6
    (merged,) = conversation(turns, per_request=False)
    apart = conversation(turns, per_request=True)
    assert len(apart) == turns
    assert [len(row.turns) for row in apart] == [1] * turns
    both = [(replace(merged, reward=1.0),), [replace(row, reward=1.0) for row in apart]]
    one, many = (batch_of([each]) for each in both)
    packed, tree = (batch.micro_batch(ordered(batch), CODEC.vocab_size) for batch in (one, many))
    assert tree.token_ids.shape == packed.token_ids.shape
    assert tree.targets.tolist() == packed.targets.tolist()
    assert tree.weights.tolist() == pytest.approx(packed.weights.tolist())
    calls = apart[0].exchanges or ()
    assert [call.trajectory_id for call in calls] == [row.trajectory_id for row in apart]
    assert [call.answer_start for call in calls] == [
        call.answer_start for call in merged.exchanges or ()
    ]
