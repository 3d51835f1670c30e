"""Replaying a training step: equal to the last bit, and every difference is named."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.errors import RunNotFoundError, SettingsError, TrainerError
from rollart_flow.replay import replay_step
from rollart_flow.store import Parent, Run
from tests.conftest import FINISHED_STEPS
from tests.copies import Change, Rows, changing, copied, nothing


def member(run: Run, step: int) -> str:
    """A trajectory that a step trained on, with an advantage that is not 0."""
    rows = run.batches.filter(pl.col("step") == step, pl.col("advantage").list.first() != 0.0)
    return str(rows.sort("position").collect()["trajectory_id"][0])


def with_other_logprobs(run: Run, step: int) -> Change:
    """Every token of a step was a little more likely than recorded.

    Of one trajectory alone would not do: where all its tokens are clipped, none of them counts.
    """
    trained = set(run.batches.filter(pl.col("step") == step).collect()["trajectory_id"])

    def change(rows: Rows) -> Rows:
        for row in rows:
            if row["trajectory_id"] in trained:
                row["logprobs"] = [logprob + 0.01 for logprob in row["logprobs"]]
        return rows

    return change


def row(run: Run, step: int) -> dict[str, Any]:
    return run.steps.filter(pl.col("step") == step).collect().row(0, named=True)


@pytest.mark.parametrize("step", range(1, FINISHED_STEPS + 1))
def test_every_step_is_recomputed_to_the_last_bit(finished_run: Run, step: int) -> None:
    replayed = replay_step(finished_run.uri, step)
    assert replayed.difference is None
    assert replayed.equal
    recorded = row(finished_run, step)
    facts = {name: recorded[name] for name in ("loss", "grad_norm", "fingerprint")}
    assert replayed.recorded == replayed.recomputed == facts


def test_without_checkpoints_all_steps_are_trained_again(finished_run: Run, tmp_path: Path) -> None:
    copy = copied(finished_run, tmp_path / "copy", without=("checkpoints", "weights"))
    assert replay_step(copy.uri, FINISHED_STEPS).equal


def test_changed_logprobs_are_found(finished_run: Run, tmp_path: Path) -> None:
    change = with_other_logprobs(finished_run, 3)
    copy = copied(finished_run, tmp_path / "copy", {"trajectories": change})
    replayed = replay_step(copy.uri, 3)
    assert not replayed.equal
    assert replayed.recomputed["fingerprint"] != replayed.recorded["fingerprint"]
    recorded, recomputed = replayed.recorded["loss"], replayed.recomputed["loss"]
    assert replayed.difference == (f"loss {recorded!r} was recorded, {recomputed!r} recomputed")


def test_a_difference_on_the_way_is_named(finished_run: Run, tmp_path: Path) -> None:
    change = with_other_logprobs(finished_run, 1)
    copy = copied(finished_run, tmp_path / "copy", {"trajectories": change})
    replayed = replay_step(copy.uri, 2)
    assert not replayed.equal
    where = ("on the way, in step 1: loss ", "on the way, in step 1: grad_norm ")
    assert str(replayed.difference).startswith(where), "the loss may be equal by chance"
    assert replay_step(copy.uri, 4).equal, "the checkpoint of step 2 stands between"


def test_a_changed_advantage_is_found(finished_run: Run, tmp_path: Path) -> None:
    trained = member(finished_run, 2)
    change = changing("trajectory_id", trained, advantage=[0.0])
    assert not replay_step(copied(finished_run, tmp_path / "a", {"batches": change}).uri, 2).equal


@pytest.mark.parametrize(
    ("column", "value"), [("loss", 0.125), ("grad_norm", 0.125), ("fingerprint", "0" * 64)]
)
def test_each_recorded_fact_is_compared(
    finished_run: Run, tmp_path: Path, column: str, value: float | str
) -> None:
    change = changing("step", 2, **{column: value})
    copy = copied(finished_run, tmp_path / "copy", {"steps": change})
    replayed = replay_step(copy.uri, 2)
    assert replayed.recorded[column] == value
    assert str(replayed.difference).startswith(f"{column} {value!r} was recorded, ")


def test_other_kernels_are_named_where_the_result_differs(
    finished_run: Run, tmp_path: Path
) -> None:
    kernels = json.loads(row(finished_run, 1)["kernels"])
    here, old = kernels["torch"], json.dumps({**kernels, "torch": "1.0"})
    copy = copied(finished_run, tmp_path / "same", {"steps": changing("step", 1, kernels=old)})
    assert replay_step(copy.uri, 1).equal, "other kernels alone are no difference"
    change = changing("step", 1, kernels=old, loss=0.5)
    copy = copied(finished_run, tmp_path / "other", {"steps": change})
    difference = str(replay_step(copy.uri, 1).difference)
    assert difference.endswith(f" (torch 1.0 then, {here} now)")


def test_the_recorded_threads_are_used(finished_run: Run, tmp_path: Path) -> None:
    change = changing("step", 1, threads=2, loss=0.5)
    copy = copied(finished_run, tmp_path / "copy", {"steps": change})
    assert "threads" not in str(replay_step(copy.uri, 1).difference)


def test_a_step_that_is_not_recorded_is_refused(finished_run: Run, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run small has no step 9; it has steps 1 to 4"):
        replay_step(finished_run.uri, 9)
    empty = copied(finished_run, tmp_path / "empty", {"steps": nothing})
    with pytest.raises(SettingsError, match="run empty has no step 1; it has no steps yet"):
        replay_step(empty.uri, 1)
    with pytest.raises(RunNotFoundError):
        replay_step(str(tmp_path / "none"), 1)


def test_a_fork_without_its_first_checkpoint_is_refused(finished_run: Run, tmp_path: Path) -> None:
    def later(rows: Rows) -> Rows:
        return [row for row in rows if row["step"] > 2]

    parent = Parent(finished_run.uri, 2)
    changes = {"steps": later, "batches": later}
    whole = copied(finished_run, tmp_path / "whole", changes, parent=parent)
    assert replay_step(whole.uri, 3).equal
    lacks = copied(
        finished_run, tmp_path / "lacks", changes, without=("checkpoints",), parent=parent
    )
    with pytest.raises(TrainerError, match=r"no checkpoint in .*000002"):
        replay_step(lacks.uri, 3)


def test_a_run_without_further_passes_says_how_far_its_engines_are_off(finished_run: Run) -> None:
    """Whatever the trainer's own version drew, engine and trainer compute the same policy."""
    steps = finished_run.steps.sort("step").collect().to_dicts()
    assert [each["lag"] for each in steps[0]["lags"]] == [0]
    for step in steps:
        assert step["value_loss"] is None
        assert sum(each["tokens"] for each in step["lags"]) == step["action_tokens"]
        if step["lags"][0]["lag"] == 0:
            assert step["mismatch_kl"] < 1e-5
            assert step["ess"] == pytest.approx(1.0, abs=1e-2)
        else:
            assert step["mismatch_kl"] > 1e-5, "nothing is fresh: this is staleness"
