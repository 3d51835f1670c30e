"""What losses need beyond logprobs: read from the stored batch, token by token, or refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow import schema
from rollart_flow.algorithms import (
    Algorithm,
    Critic,
    decoupled_ppo,
    double_sided,
    grpo,
    ipa,
    ppo,
    topr,
)
from rollart_flow.algorithms.advantages import GAE, Constant
from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens
from rollart_flow.algorithms.recipes.topr import TOPR
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.batch.training_batch import read_batch
from tests.trainers.cases import (
    CONFIG,
    VOCABULARY,
    Row,
    completed,
    initial_weights,
    make_rows,
    table,
)

READER = Algorithm("reader", TOPR(), GAE(), critic=Critic())
"""Reads the columns `reward` and `targets`."""


def test_every_token_has_the_reward_lag_and_target_it_was_stored_with() -> None:
    rows = make_rows(7, seed=4)
    stored = completed(rows)
    batch = read_batch(stored, READER)
    order = np.array([5, 0, 3])
    micro = batch.micro_batch(order, VOCABULARY)
    assert micro.lags is not None
    expected = [
        (place, stored["reward"][int(row)].as_py(),
         5 - stored["token_versions"][int(row)][at].as_py(),
         stored["targets"][int(row)][number].as_py())
        for place, row in enumerate(order)
        for number, at in enumerate(rows[row].actions)
    ]  # fmt: skip
    columns = (micro.rows, micro.columns["reward"], micro.lags, micro.columns["targets"])
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(set(micro.lags.tolist())) == 3, "versions are mixed within trajectories"


def test_a_chunk_is_a_run_of_action_tokens_between_observations() -> None:
    rows = make_rows(9, seed=1)
    micro = read_batch(table(rows)).micro_batch(np.arange(9), VOCABULARY)
    expected, chunk = [], -1
    for row in rows:
        for at in row.actions:
            chunk += not row.action_mask[at - 1]
            expected.append(chunk)
    assert micro.chunks.tolist() == expected
    assert chunk > 9


def test_columns_are_read_through_slices_and_chunks() -> None:
    whole = completed(make_rows(6, seed=2))
    expected = read_batch(whole, READER).columns
    cut = pa.concat_tables([completed(make_rows(6, seed=2)).slice(0, 2), whole.slice(2)])
    found = read_batch(cut, READER).columns
    assert expected.lags is not None
    assert found.lags is not None
    assert np.array_equal(found.lags, expected.lags)
    part = read_batch(whole.slice(2), READER).columns
    skipped = sum(whole["action_mask"][row].as_py().count(True) for row in (0, 1))
    assert part.lags is not None
    assert np.array_equal(part.lags, expected.lags[skipped:])
    for name in ("reward", "targets"):
        assert np.array_equal(found.values[name], expected.values[name]), name
        assert np.array_equal(part.values[name], expected.values[name][skipped:]), name


@pytest.mark.parametrize(
    ("algorithm", "column", "said"),
    [
        (topr(), "reward", "topr needs reward, "),
        (decoupled_ppo(proximal="interpolated"), "token_versions", "needs token_versions with"),
        (double_sided(max_lag=2), "trained_version", "needs token_versions with trained_version, "),
        (ppo(), "targets", "ppo needs targets, "),
    ],
)
def test_a_batch_that_lacks_what_the_algorithm_reads_is_refused(
    algorithm: Algorithm, column: str, said: str
) -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm)
    whole = completed(make_rows(4, seed=0))
    with pytest.raises(TrainerError, match=said) as caught:
        trainer.train_step(1, whole.drop_columns(column))
    assert "\n" not in str(caught.value)
    place = whole.column_names.index(column)
    nulls = pa.nulls(4, whole.schema.field(column).type)
    with pytest.raises(TrainerError, match=said):
        trainer.train_step(1, whole.set_column(place, column, nulls))
    assert trainer.train_step(1, whole).step == 1


@pytest.mark.parametrize("algorithm", [grpo(), ipa(), grpo(ratio_to="old")], ids=str)
def test_what_it_does_not_read_may_be_absent(algorithm: Algorithm) -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm)
    assert trainer.train_step(1, table(make_rows(4, seed=0))).lags is None


def test_targets_must_be_one_for_each_action_token() -> None:
    whole = completed(make_rows(4, seed=0))
    place = whole.column_names.index("targets")
    short = pa.array([[0.5]] * 4, pa.list_(pa.float32()))
    with pytest.raises(TrainerError, match="targets of the batch are not one for each"):
        read_batch(whole.set_column(place, "targets", short), READER)


ADDED: dict[str, dict[str, Any]] = {
    "effort": {"type": "double"},
    "judged": {"type": "boolean"},
    "surprise": {"type": "float", "per": "token"},
    "doubt": {"type": "integer", "per": "action token"},
    "praise": {"type": "float", "per": "turn"},
    "notes": {"type": "float"},
    "mood": {"type": "string"},
}
"""Columns that a copy of the schemas declares beside the library's own."""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the schemas in which `trajectories` has further columns."""
    for path in schema._schemas_folder().glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    table = json.loads((tmp_path / "trajectories.json").read_text())
    for name, added in ADDED.items():
        listed = "per" in added or name == "notes"
        kind = {"type": "array", "elementType": added["type"], "containsNull": False}
        metadata = {"comment": "Added.", "since": "99"}
        if "per" in added:
            metadata["per"] = added["per"]
        column = {"name": name, "type": kind if listed else added["type"], "nullable": True}
        table["fields"].append({**column, "metadata": metadata})
    (tmp_path / "trajectories.json").write_text(json.dumps(table))
    monkeypatch.setattr(schema, "_schemas_folder", lambda: tmp_path)
    caches = (schema.delta_schema, schema.stored_schema, schema.row_schema)
    for cached in caches:
        cached.cache_clear()
    assert schema._newest() == 99
    yield
    for cached in caches:
        cached.cache_clear()


@dataclass(frozen=True)
class Reads(Loss):
    """Keeps the columns that it was given, and pulls on each token by all of them."""

    names: tuple[str, ...]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.names)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        pull = torch.stack([tokens.need(name).float() for name in self.names]).sum(0)
        ratio = torch.ones_like(tokens.advantages)
        return TokenLoss(-pull * tokens.logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def turned(row: Row) -> list[int]:
    """Where the turns of a row end: each is a run of observations and the actions after it."""
    mask = [*row.action_mask, False]
    last = [at + 1 for at in row.actions if not mask[at + 1]]
    return last if last[-1] == len(row.token_ids) else [*last, len(row.token_ids)]


def with_added(rows: list[Row]) -> pa.Table:
    """The rows with every added column and the turns, in the types that the schema declares."""
    ends = [turned(row) for row in rows]
    nothing = {
        "start": 0, "observation": "", "action": "", "reward": 0.0, "generate_s": 0.0,
        "step_s": 0.0, "hardware": "", "worker": "", "finish_reason": "stop",
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "turns": [[{**nothing, "end": end} for end in of] for of in ends],
        "effort": [0.5 * index for index in range(len(rows))],
        "judged": [index % 2 == 0 for index in range(len(rows))],
        "surprise": [[float(at) for at in range(len(row.token_ids))] for row in rows],
        "doubt": [list(range(len(row.actions))) for row in rows],
        "praise": [[float(turn) for turn in range(len(of))] for of in ends],
        "notes": [[0.0] for _ in rows],
        "mood": ["calm"] * len(rows),
    }
    found = completed(rows)
    for name, column in values.items():
        kind = schema.row_schema("trajectories").field(name).type
        found = found.append_column(name, pa.array(column, kind))
    return found


def test_a_loss_reads_a_column_that_only_the_schema_declares(declared: None) -> None:
    rows = make_rows(6, seed=3)
    names = ("effort", "judged", "surprise", "doubt", "praise")
    algorithm = Algorithm("reads", Reads(names), Constant())
    batch = with_added(rows)
    order = np.array([4, 1, 2])
    micro = read_batch(batch, algorithm).micro_batch(order, VOCABULARY)
    expected: dict[str, list[Any]] = {name: [] for name in names}
    for index in order:
        row = rows[index]
        for number, at in enumerate(row.actions):
            turn = next(turn for turn, end in enumerate(turned(row)) if at < end)
            token = (0.5 * index, index % 2 == 0, float(at), number, float(turn))
            for name, value in zip(names, token, strict=True):
                expected[name].append(value)
    assert {name: column.tolist() for name, column in micro.columns.items()} == expected
    kinds = {name: column.dtype for name, column in micro.columns.items()}
    assert kinds == {
        "effort": torch.float32, "judged": torch.bool, "surprise": torch.float32,
        "doubt": torch.int64, "praise": torch.float32,
    }  # fmt: skip
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm)
    assert trainer.train_step(1, batch).grad_norm > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fame", "reads needs fame, which the batch does not have for every row"),
        ("values", "reads needs 'values', which neither schemas/trajectories.json nor"),
        ("notes", "column 'notes' is a list without `per` in its schema"),
        ("mood", "column 'mood' is string; a loss reads numbers and flags"),
    ],
)
def test_a_column_that_no_loss_can_read_is_refused(declared: None, name: str, said: str) -> None:
    rows = with_added(make_rows(4, seed=0))
    rows = rows.append_column("values", pa.array([0.0] * 4))
    with pytest.raises(TrainerError, match=said) as caught:
        read_batch(rows, Algorithm("reads", Reads((name,)), Constant()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["surprise", "doubt", "praise"])
def test_a_list_that_is_not_aligned_is_refused(declared: None, name: str) -> None:
    rows = with_added(make_rows(4, seed=0))
    place = rows.column_names.index(name)
    short = pa.array([[]] * 4, rows.schema.field(name).type)
    with pytest.raises(TrainerError, match=f"{name} of the batch are not one for each"):
        read_batch(
            rows.set_column(place, name, short), Algorithm("reads", Reads((name,)), Constant())
        )
