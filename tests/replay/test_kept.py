"""Keeping the logprobs of a trajectory's tokens: what is computed, read and refused."""

import math
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import StoreError, WeightsError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import keep_logprobs
from rollart_flow.replay.logprobs import score_under
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.replays import read_replayed, replayed_uri
from rollart_flow.store.step_logprobs import step_logprobs_uri
from rollart_flow.types import Split
from rollart_flow.views.trajectory import REPLAYED, TOKENS
from rollart_flow.views.view import Page, ViewReader
from tests.cli.shell import refused, rollart
from tests.conftest import SMALL_PIPELINE
from tests.copies import changing, copied, nothing

ALL = Page(rows=10_000)


def tokens(run: Run, trajectory_id: str) -> pl.DataFrame:
    values = {"trajectory": trajectory_id}
    return ViewReader(run.snapshot()).read(TOKENS, values, ALL).frame


def trained_later(run: Run) -> tuple[str, int]:
    """A trajectory that other weights sampled than its step started from, and the step."""
    rows = run.batches.filter(pl.col("lag") > 0).sort("step", "position").head(1)
    (row,) = rows.select("trajectory_id", "step").collect().rows()
    return row


def test_the_ratio_of_a_token_is_that_of_the_step(finished_run: Run, tmp_path: Path) -> None:
    run = copied(finished_run, tmp_path / "copy")
    name, step = trained_later(run)
    before = tokens(run, name)
    assert before["replayed_logprob"].null_count() == before.height
    kept = keep_logprobs(run.uri, name)
    assert (kept.divergence, kept.step) == (None, step)
    after = tokens(run, name)
    acts = after.filter("trained")
    assert acts.height == kept.tokens
    assert after.filter(~pl.col("trained"))["ratio"].null_count() == after.height - acts.height
    assert (acts["difference"].abs() < 1e-4).all(), "rounding alone, under the tokens' own version"
    log_ratio = acts["trained_logprob"] - acts["logprob"]
    assert max(map(abs, log_ratio)) > 1e-3, "the step started from other weights"
    assert acts["ratio"].to_list() == pytest.approx(log_ratio.exp().to_list())
    (row,) = ViewReader(run.snapshot()).read(REPLAYED, {"trajectory": name}).frame.to_dicts()
    assert row["ratio_max"] == pytest.approx(kept.ratio_max)
    assert (row["step"], row["trained_version"]) == (step, step - 1)


def test_ratios_of_a_whole_batch_have_the_recorded_maximum(
    finished_run: Run, tmp_path: Path
) -> None:
    run = copied(finished_run, tmp_path / "copy")
    _, step = trained_later(run)
    batch = run.batches.filter(pl.col("step") == step).collect()["trajectory_id"].to_list()
    largest = [keep_logprobs(run.uri, name).ratio_max or math.nan for name in batch]
    recorded = run.steps.filter(pl.col("step") == step).collect()["ratio_max"].item()
    assert max(largest) == pytest.approx(recorded, rel=1e-4)


def test_each_token_of_a_chain_of_two_versions_is_scored_under_its_own(
    finished_run: Run, tmp_path: Path
) -> None:
    name, step = trained_later(finished_run)
    pipeline = stored_pipeline(finished_run)
    _, trajectory = read_attempt(finished_run, name)
    old, new = (
        score_under(finished_run, pipeline, trajectory, version) for version in (0, step - 1)
    )
    assert old != new
    half = len(trajectory.token_ids) // 2
    versions = [
        version if version < 0 else 0 if at < half else step - 1
        for at, version in enumerate(trajectory.token_versions)
    ]
    change = changing("trajectory_id", name, token_versions=versions)
    run = copied(finished_run, tmp_path / "copy", {"trajectories": change})
    keep_logprobs(run.uri, name)
    acts = tokens(run, name).filter("trained")
    assert acts["version"].n_unique() == 2
    own = [
        before if version == 0 else after
        for version, before, after in zip(acts["version"], old, new, strict=True)
    ]
    assert acts["replayed_logprob"].to_list() == pytest.approx(own)
    assert acts["trained_logprob"].to_list() == pytest.approx(new)


def test_a_run_that_keeps_its_logprobs_has_the_ratios_that_a_replay_finds(
    finished_run: Run, tmp_path: Path
) -> None:
    keeping = {"keep_logprobs": "true", "minibatches": "2", "steps": "3"}
    loaded = load_source(SMALL_PIPELINE, tmp_path / "small.py", keeping)
    result = runner.fork(finished_run.uri, 2, loaded, store=str(tmp_path), executor="inline")
    run = Run(result.uri)
    lag = run.batches.sort(pl.col("lag"), "position").tail(1).collect()
    name = lag["trajectory_id"].item()
    own = tokens(run, name)
    assert own["trained_logprob"].count() == own["trained"].sum() > 0
    log_ratio = (own["trained_logprob"] - own["logprob"]).drop_nulls()
    assert own["ratio"].drop_nulls().to_list() == pytest.approx(log_ratio.exp().to_list())
    keep_logprobs(run.uri, name)
    Path(step_logprobs_uri(run.uri, 3)).unlink()
    again = tokens(run, name)
    for column in ("trained_logprob", "ratio"):
        assert own[column].to_list() == pytest.approx(again[column].to_list(), abs=1e-5)


def test_a_moment_before_the_step_has_no_ratio(finished_run: Run, tmp_path: Path) -> None:
    run = copied(finished_run, tmp_path / "copy")
    name, _ = trained_later(run)
    keep_logprobs(run.uri, name)
    mine = run.trajectories.filter(pl.col("trajectory_id") == name)
    then = tokens(Run(run.uri, mine.collect()["seq"].item()), name)
    assert then["replayed_logprob"].count() > 0
    assert then["ratio"].count() == 0


def test_an_evaluation_has_the_logprobs_of_its_own_version_alone(
    finished_run: Run, tmp_path: Path
) -> None:
    run = copied(finished_run, tmp_path / "copy")
    evaluated = run.trajectories.filter(pl.col("split") == Split.EVALUATION).head(1).collect()
    name = evaluated["trajectory_id"].item()
    said = rollart("replay", run.uri, "--trajectory", name, "--logprobs")
    assert said.code == 0
    assert f"kept in {replayed_uri(run.uri, name)}" in said.out
    assert tokens(run, name)["ratio"].count() == 0
    assert tokens(run, name)["replayed_logprob"].count() > 0


def test_a_version_that_is_lost_is_one_line_and_nothing_is_kept(
    finished_run: Run, tmp_path: Path
) -> None:
    run = copied(
        finished_run, tmp_path / "copy", {"batches": nothing}, without=("weights", "checkpoints")
    )
    late = pl.col("policy_version_start") > 0
    name = run.trajectories.filter(late).head(1).collect()["trajectory_id"].item()
    with pytest.raises(WeightsError, match=r"no weights of version \d in .*cannot be recomputed"):
        keep_logprobs(run.uri, name)
    said = refused(rollart("replay", run.uri, "--trajectory", name, "--logprobs"), 1)
    assert "no weights of version" in said
    assert read_replayed(run.uri, name) is None


def test_a_damaged_file_is_named(finished_run: Run, tmp_path: Path) -> None:
    run = copied(finished_run, tmp_path / "copy")
    name, _ = trained_later(run)
    file = Path(replayed_uri(run.uri, name))
    file.parent.mkdir()
    file.write_bytes(b"PAR1 cut off")
    with pytest.raises(StoreError, match=r"is damaged .*write it again"):
        tokens(run, name)


@pytest.mark.parametrize("name", ["../run", "a/b", "", "x" * 300, "g1'%2F<b>"])
def test_an_id_that_is_no_name_of_a_file_stays_in_the_folder(name: str) -> None:
    folder, _, file = replayed_uri("/runs/mine", name).rpartition("/")
    assert folder == "/runs/mine/replays"
    assert len(file) < 100
    assert "%" not in file


def test_logprobs_need_a_trajectory() -> None:
    said = refused(rollart("replay", "x", "--step", "1", "--logprobs"))
    assert "--logprobs goes with --trajectory" in said
