"""Figures are what the rows say, under declared names; samples are bounded and escaped."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.metrics.catalog import GROUPS, METRICS
from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.overview import OVERVIEW
from rollart_flow.metrics.preferences import preferences_by_step
from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.metrics.samples import LONGEST_MESSAGE, sampled_attempts
from rollart_flow.metrics.window import RecordKind, RunRecord
from rollart_flow.rows import trajectories_table
from rollart_flow.store import Run, open_run
from tests import runs
from tests.builders import step_row, turn

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"


def records(run: Run) -> list[RunRecord]:
    """Every record of a run."""
    return list(RecordReader(run).after(Cursor()))


def test_figures_of_a_step_are_those_of_its_rows(tmp_path: Path) -> None:
    run = runs.small_run(tmp_path)
    found = records(run)
    assert [(each.kind, each.step) for each in found] == [
        (RecordKind.EVALUATION, 0), (RecordKind.STEP, 1), (RecordKind.STEP, 2),
        (RecordKind.EVALUATION, 2), (RecordKind.STEP, 3), (RecordKind.STEP, 4),
        (RecordKind.EVALUATION, 4),
    ]  # fmt: skip
    figures = flat(found[1].figures)
    assert figures["train/loss"] == 0.5
    assert figures["time/step"] == 2.0
    assert figures["train/zero_variance"] == 0.0
    assert figures["rollout/attempts/completed"] == 8
    assert figures["rollout/attempts/stale"] == 1
    assert figures["env/failures/frozenlake"] == 1
    assert [figures[f"rollout/reward{name}"] for name in ("", "/min", "/max", "/count")] == [
        0.5, 0.0, 1.0, 8,
    ]  # fmt: skip
    assert figures["rollout/turns/frozenlake"] == 3
    assert figures["engine/tokens_per_second"] == figures["engine/tokens"] / 2.0
    assert figures["rollout/wasted"] == pytest.approx(3 * 6 / (3 * 6 + 4 * 6 + 4 * 2))
    scores = flat(found[3].figures)
    assert scores["eval/success_sampled/arithmetic"] == 0.5
    assert scores["eval/success_sampled/arithmetic/count"] == 64
    assert "eval/success_sampled/arithmetic/low" not in scores  # the run did not store it


def test_a_real_run_has_figures_of_every_group_that_it_uses(finished_run: Run) -> None:
    steps = [each for each in records(finished_run) if each.kind is RecordKind.STEP]
    groups = {figure.metric.group for step in steps for figure in step.figures}
    assert groups == {"train", "rollout", "env", "engine", "buffer", "time"}


def test_margin_and_accuracy_are_those_of_the_pairs_of_each_step() -> None:
    rows = pl.DataFrame(
        {
            "step": [1, 1, 1, 1, 2, 2, 3],
            "preferred": [True, False, False, True, True, False, None],
            "pair": [0, 0, 1, 1, None, None, None],
            "implicit_reward": [0.5, 0.25, 1.0, 0.75, 2.0, 0.5, None],
        }
    )
    found = preferences_by_step(rows.lazy()).collect()
    assert found.rows() == [(1, 0.0, 0.5), (2, 1.5, None)]


def test_names_are_those_of_groups_and_the_overview_has_declared_ones() -> None:
    assert {metric.group for metric in METRICS.values()} == set(GROUPS)
    shown = {name for charts in OVERVIEW.values() for chart in charts.values() for name in chart}
    assert shown <= METRICS.keys()


def test_the_page_lists_every_metric() -> None:
    rows = [
        f"| `{metric.name}` | {metric.unit} | {metric.label} | {metric.meaning} |"
        for metric in METRICS.values()
    ]
    table = PAGE.read_text().split("| metric | unit | by | meaning |\n|-|-|-|-|\n")[1]
    assert table.split("\n\n")[0].splitlines() == rows


def test_samples_are_the_best_and_worst_attempts_bounded_and_escaped(tmp_path: Path) -> None:
    run = runs.small_run(tmp_path, steps=1)
    (_, step) = records(run)
    samples = sampled_attempts(step, 2)
    assert [sample.reward for sample in samples] == [1.0, None]
    assert samples[0].messages[:2] == (("user", "12+30="), ("assistant", "42"))
    assert sampled_attempts(step, 0) == ()

    hostile = "<script>alert(1)</script>\x1b]0;\u202e" + "a" * 5000
    bad = replace(runs.trajectory(1, "arithmetic", 0), turns=(turn(hostile, 0.0),))
    writer = runs.new_writer(tmp_path, "hostile")
    writer.commit("trajectories", trajectories_table([bad]))
    writer.commit("steps", step_row(1))
    writer.close()
    (record,) = records(open_run(tmp_path / "hostile"))
    (sample,) = sampled_attempts(record, 4)
    said = sample.messages[1][1]
    assert said.startswith("&lt;script&gt;alert(1)&lt;/script&gt;\\u001b]0;\\u202eaaa")
    assert said.endswith("…")
    assert len(said) < LONGEST_MESSAGE + 50
