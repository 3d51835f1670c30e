"""Forks: a new run that starts from a version of another one and stands for itself."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import RunExistsError, RunFailedError, RunNotFoundError, SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.operators.recovery import recover
from rollart_flow.pipeline import LoadedPipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.runner.fork import prepare_fork
from rollart_flow.runner.retrain import bring_to, stored_pipeline, stored_trainer
from rollart_flow.store import Parent, Run, RunStatus, open_run
from rollart_flow.store.layout import checkpoints_uri, policy_uri
from rollart_flow.telemetry import Progress
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder
from rollart_flow.weights import fingerprint, open_weights
from tests.conftest import FINISHED_STEPS, SMALL_PIPELINE
from tests.copies import Rows, copied

FORKED_AT = FINISHED_STEPS - 1
RATE = 0.0005


def pipeline(**changes: object) -> LoadedPipeline:
    """The pipeline of the parent with other settings."""
    named = {key.replace("__", "."): str(value) for key, value in changes.items()}
    return load_source(SMALL_PIPELINE, "small.py", named)


def checksum(run: Run, version: int) -> str:
    rows = run.weights.filter(pl.col("policy_version") == version).collect()
    return str(rows["checksum"][0])


@pytest.fixture(scope="module")
def forked(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A fork at step 3, between two checkpoints, that has run to its end: one step."""
    said: list[Progress] = []
    changed = pipeline(train__optimizer__lr=RATE, train__algorithm__kl=0.01, evaluate__episodes=1)
    store = str(tmp_path_factory.mktemp("forks"))
    result = runner.fork(
        finished_run.uri,
        FORKED_AT,
        changed,
        store=store,
        executor="inline",
        on_progress=said.append,
    )
    assert result.status is RunStatus.FINISHED
    assert "recomputing step 3 of 3" in [progress.text for progress in said]
    return open_run(result.uri)


def test_it_names_its_parent_and_goes_on_after_it(finished_run: Run, forked: Run) -> None:
    assert forked.info.name == "small-1"
    assert forked.info.parent == Parent(finished_run.uri, FORKED_AT)
    (step,) = forked.steps.collect().to_dicts()
    assert step["step"] == FORKED_AT + 1
    assert step["learning_rate"] == RATE
    assert sorted(forked.weights.collect()["policy_version"]) == [FORKED_AT, FORKED_AT + 1]


def test_it_starts_from_the_parents_weights(finished_run: Run, forked: Run) -> None:
    assert checksum(forked, FORKED_AT) == checksum(finished_run, FORKED_AT)
    _, tensors = load_folder(policy_uri(forked.uri))
    assert fingerprint(tensors) == checksum(finished_run, FORKED_AT)
    tokenizers = [
        (Path(policy_uri(run.uri)) / "tokenizer.json").read_text() for run in (finished_run, forked)
    ]
    assert tokenizers[0] == tokenizers[1]


def test_nothing_of_it_is_older_than_its_start(forked: Run) -> None:
    oldest = forked.trajectories.select(pl.col("policy_version_start").min()).collect().item()
    assert oldest == FORKED_AT
    evaluated = set(forked.evaluations.collect()["policy_version"])
    assert evaluated == {FORKED_AT, FORKED_AT + 1}


def test_it_can_be_replayed(forked: Run) -> None:
    assert replay_step(forked.uri, FORKED_AT + 1).difference is None
    trained = forked.batches.collect()["trajectory_id"].to_list()
    assert replay_trajectory(forked.uri, trained[0]).divergence is None
    with pytest.raises(SettingsError, match=r"no step 3; it has steps 4 to 4"):
        replay_step(forked.uri, FORKED_AT)


@pytest.mark.parametrize("step", [0, 2, 3])
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_what_a_fork_starts_from(finished_run: Run, tmp_path: Path, step: int, kl: float) -> None:
    """At the start, at a checkpoint and after one; also with a reference policy, its own."""
    changed = pipeline(train__algorithm__kl=kl)
    uri = prepare_fork(finished_run.uri, step, changed, store=str(tmp_path), name="fork")
    fork = Run(uri)
    where = recover(fork)
    assert (where.start, where.version, where.checkpoint) == (step, step, step)
    published = open_weights("local", f"{uri}/weights").read(step)
    assert fingerprint(published) == checksum(finished_run, step)
    trainer = stored_trainer(fork, stored_pipeline(fork))
    assert list(bring_to(fork, trainer, step)) == []
    assert trainer.version == step
    assert fingerprint(trainer.weights()) == checksum(finished_run, step)
    if kl == 0.0:
        # The optimizer went over too: the parent's next batch gives the parent's next version.
        result = trainer.train_step(step + 1, finished_run.batch(step + 1))
        assert result.fingerprint == checksum(finished_run, step + 1)


def test_a_fork_can_be_forked(forked: Run, tmp_path: Path) -> None:
    changed = pipeline(train__steps=6)
    uri = prepare_fork(forked.uri, FORKED_AT, changed, store=str(tmp_path), name="again")
    assert checksum(Run(uri), FORKED_AT) == checksum(forked, FORKED_AT)
    with pytest.raises(SettingsError, match="no version 2; it has 3 to 4"):
        prepare_fork(forked.uri, 2, changed, store=str(tmp_path), name="older")


@pytest.mark.parametrize(
    ("step", "changes", "said"),
    [
        (5, {"train__steps": 9}, "run small has no version 5; it has 0 to 4"),
        (4, {}, "train: steps is 4, so nothing is left to train after step 4; raise it, as in"),
        (2, {"policy__hidden": 64}, "policy: hidden_size is 64, but the run to fork has 32"),
        (2, {"policy__layers": 3}, "policy: num_hidden_layers is 3, but the run to fork has 2"),
        (
            2,
            {"policy__words": '["left", "aside", "right", "up"]'},
            "policy: the tokenizer is not that of ",
        ),
        (2, {"policy__max_context": 1024}, "policy: max_context is 1024, but the model of"),
    ],
)
def test_what_does_not_fit_is_refused(
    finished_run: Run, tmp_path: Path, step: int, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        runner.fork(finished_run.uri, step, pipeline(**changes), store=str(tmp_path), name="no")
    assert str(refused.value).startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_a_shorter_context_fits(finished_run: Run, tmp_path: Path) -> None:
    changed = pipeline(policy__max_context=256)
    assert prepare_fork(finished_run.uri, 2, changed, store=str(tmp_path), name="short")


def test_an_unknown_parent_and_a_taken_name_are_refused(finished_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError):
        runner.fork(str(tmp_path / "none"), 0, pipeline())
    store = str(Path(finished_run.uri).parent)
    with pytest.raises(RunExistsError, match="choose another --name"):
        runner.fork(finished_run.uri, 2, pipeline(), store=store, name="small")
    assert open_run(finished_run.uri).status is RunStatus.FINISHED


def test_a_parent_that_cannot_be_recomputed_leaves_no_fork(
    finished_run: Run, tmp_path: Path
) -> None:
    def other_rewards(rows: Rows) -> Rows:
        return [{**row, "advantage": [1.0]} for row in rows]

    parent = copied(finished_run, tmp_path / "parent", {"batches": other_rewards})
    with pytest.raises(RunFailedError, match="version 3 cannot be recomputed: step 3: loss"):
        runner.fork(parent.uri, 3, pipeline(), store=str(tmp_path), name="fork")
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("algorithm", ["ppo(kl=0.1)", "ppo(kl=0.1, reference=1)"])
def test_a_fork_may_have_another_algorithm_with_a_critic_and_a_reference(
    finished_run: Run, tmp_path: Path, algorithm: str
) -> None:
    """The critic begins with the fork; a reference before it is the version that it starts from."""
    text = SMALL_PIPELINE.replace("grpo()", algorithm).replace("import grpo", "import ppo")
    loaded = load_source(text, tmp_path / "small.py")
    uri = prepare_fork(finished_run.uri, FORKED_AT, loaded, store=str(tmp_path), name="critic")
    trainer = stored_trainer(Run(uri), loaded.pipeline)
    trainer.load(Path(checkpoint_folder(checkpoints_uri(uri), FORKED_AT)))
    assert trainer.version == FORKED_AT
    values = (
        trainer.recompute_old_logprobs(finished_run.batch(1))["values"].combine_chunks().flatten()
    )
    assert set(values.to_pylist()) == {0.0}
