"""Runs that learn from another policy, whose folder they do not need once they have begun."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import SettingsError
from rollart_flow.exporting import export
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step
from rollart_flow.store import Run, open_run

OFFLINE = """
from rollart_flow import Pipeline, Policy, stored, train
from rollart_flow.algorithms import distill

policy = Policy.tiny(hidden=32)
source = stored("{source}", batch_size=8)
steps = train(source, policy, distill("{teacher}"), steps=4, checkpoint_every=2)
pipeline = Pipeline("taught", steps)
"""
MIXED = """
from rollart_flow import Pipeline, Policy, buffer, mix, reward, rollout, stored, tasks, train
from rollart_flow.algorithms import distill
from rollart_flow.envs import FrozenLake

policy = Policy.tiny(hidden=32)
prompts = tasks(FrozenLake(size=4), group_size=4)
new = buffer(reward(rollout(prompts, policy, max_tokens=6, max_turns=3)), batch_size=8)
old = stored("{source}", exempt=True)
steps = train(mix(new, old, weights=(2, 1)), policy, distill("{teacher}"), steps=2)
pipeline = Pipeline("taught", steps)
"""


@pytest.fixture
def teacher(finished_run: Run, tmp_path: Path) -> Path:
    """The last version of a run, as a folder."""
    return Path(export(finished_run, tmp_path / "teacher").folder)


def facts(run: Run) -> list[tuple[object, ...]]:
    rows = run.steps.sort("step").select("loss", "grad_norm", "fingerprint").collect()
    return list(rows.iter_rows())


def test_a_run_goes_on_and_is_forked_and_replayed_without_the_folder_of_its_teacher(
    finished_run: Run, teacher: Path, tmp_path: Path
) -> None:
    text = OFFLINE.format(source=finished_run.uri, teacher=teacher)
    loaded, shorter = (load_source(text, "t.py", {"steps": str(steps)}) for steps in (4, 2))
    whole = runner.run(loaded, store=str(tmp_path), name="whole", executor="inline")
    cut = runner.run(shorter, store=str(tmp_path), name="cut", executor="inline")
    shutil.rmtree(teacher)
    runner.resume(cut.uri, steps=4, executor="inline")
    expected = facts(open_run(whole.uri))
    assert facts(open_run(cut.uri)) == expected
    assert replay_step(whole.uri, 3).equal
    shutil.rmtree(cut.uri)
    forked = runner.fork(whole.uri, 2, loaded, store=str(tmp_path), name="f", executor="inline")
    shutil.rmtree(whole.uri)
    assert facts(open_run(forked.uri)) == expected[2:]
    assert replay_step(forked.uri, 4).equal
    with pytest.raises(SettingsError, match=r"^teacher: no config"):
        runner.run(loaded, store=str(tmp_path), name="gone", executor="inline")
    assert not (tmp_path / "gone").exists()


def test_a_teacher_is_followed_on_new_trajectories_and_stored_ones(
    finished_run: Run, teacher: Path, tmp_path: Path
) -> None:
    text = MIXED.format(source=finished_run.uri, teacher=teacher)
    done = runner.run(load_source(text, "m.py"), store=str(tmp_path), name="m", executor="inline")
    shutil.rmtree(teacher)
    run = open_run(done.uri)
    drawn = pl.col("source_seq").is_not_null()
    rows = run.batches.group_by("step").agg((~drawn).sum(), drawn.sum().alias("old")).sort("step")
    assert rows.collect().rows() == [(1, 8, 4), (2, 8, 4)]
    assert replay_step(run.uri, 2).equal
