"""`replay`: how what was recomputed is shown, and the exit code.

The recomputation itself is tested with the replay; here its answers are given, since a real one
needs a run that was really trained.
"""

import json
from pathlib import Path

import pytest

from rollart_flow import replay
from rollart_flow.replay import StepReplay, TrajectoryReplay
from tests.cli.shell import refused, rollart
from tests.runs import small_run

FACTS: dict[str, float | str] = {"loss": 0.1 + 0.2, "grad_norm": 1.0, "fingerprint": "ab"}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_run(tmp_path_factory.mktemp("store"), steps=1).uri


def answer_step(patch: pytest.MonkeyPatch, **recomputed: float) -> None:
    """Let the recomputation of a step give the recorded facts, but for these."""
    difference = "step 1: loss" if recomputed else None
    answer = StepReplay(1, not recomputed, FACTS, {**FACTS, **recomputed}, difference)
    patch.setattr(replay, "replay_step", lambda *_: answer)


def test_an_equal_step_is_exit_code_0(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_step(monkeypatch)
    said = rollart("replay", uri, "--step", "1")
    assert said.code == 0
    assert "step 1: equal to the last bit" in said.out
    found = json.loads(rollart("replay", uri, "--step", "1", "--json").out)
    assert found == {
        "step": 1, "equal": True, "recorded": FACTS, "recomputed": FACTS, "difference": None,
    }  # fmt: skip
    assert found["recorded"]["loss"] == 0.1 + 0.2


def test_another_step_is_exit_code_1_and_shows_both(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_step(monkeypatch, loss=0.3)
    said = rollart("replay", uri, "--step", "1")
    assert said.code == 1
    assert "0.30000000000000004 differs from 0.3" in said.out
    assert "step 1: differs: step 1: loss" in said.out
    assert rollart("replay", uri, "--step", "1", "--json").code == 1


@pytest.mark.parametrize("divergence", [None, "turn 2: observation"])
def test_a_trajectory_is_found_by_the_beginning_of_its_id(
    uri: str, monkeypatch: pytest.MonkeyPatch, divergence: str | None
) -> None:
    asked: list[str] = []

    def answer(run: str, trajectory_id: str) -> TrajectoryReplay:
        asked.append(trajectory_id)
        return TrajectoryReplay(trajectory_id, divergence is None, divergence, [])

    monkeypatch.setattr(replay, "replay_trajectory", answer)
    said = rollart("replay", uri, "--trajectory", "s1-arithmetic-2")
    assert asked == ["s1-arithmetic-2"]
    assert said.code == (0 if divergence is None else 1)
    assert (divergence or "all equal") in said.out
    as_json = json.loads(rollart("replay", uri, "--trajectory", "s1-arithmetic-2", "--json").out)
    assert as_json["divergence"] == divergence


def test_a_run_that_was_never_trained_is_refused_in_one_line(tmp_path: Path) -> None:
    run = small_run(tmp_path, steps=0)
    refused(rollart("replay", run.uri, "--step", "1"))
