"""A real run of an algorithm that needs everything: a critic, pi_old, a later reference version."""

from pathlib import Path

import numpy as np
import pytest

from rollart_flow import runner
from rollart_flow.replay import replay_step
from rollart_flow.store import Run, RunStatus, RunWriter
from rollart_flow.store.layout import weights_uri
from rollart_flow.types import EventKind
from rollart_flow.weights import open_weights
from tests.copies import Rows, copied
from tests.runner.local import events, run_with
from tests.runner.world import source

STEPS = 3
ACTOR_CRITIC = """
from rollart_flow.algorithms import Decayed, ppo, tis

prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=4)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
algorithm = ppo(
    correction=tis(cap=2.0), kl=0.05, kl_estimator="k2", reference=1, staleness=Decayed(0.5)
)
steps = train(batches, policy, algorithm, steps=3, minibatches=2, epochs=2, checkpoint_every=2)
pipeline = Pipeline("actor-critic", steps)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run, finished."""
    folder = tmp_path_factory.mktemp("actor-critic")
    return run_with(source(folder, ACTOR_CRITIC), folder, executor="inline")


def test_what_the_critic_is_trained_towards_is_stored_with_each_batch(run: Run) -> None:
    for step in range(1, STEPS + 1):
        batch = run.batch(step)
        actions = [sum(mask) for mask in batch["action_mask"].to_pylist()]
        for column in ("targets", "advantage"):
            assert [len(each) for each in batch[column].to_pylist()] == actions
        weights = np.array(batch["weight"].to_pylist())
        assert weights == pytest.approx(0.5 ** np.array(batch["staleness"].to_pylist()))


def test_each_step_says_what_its_engines_and_its_critic_did(run: Run) -> None:
    steps = run.steps.sort("step").collect()
    assert (steps["value_loss"] > 0).all()
    for row in steps.iter_rows(named=True):
        fresh = [each for each in row["lags"] if each["lag"] == 0]
        assert sum(each["tokens"] for each in row["lags"]) == row["action_tokens"]
        assert not fresh or row["mismatch_kl"] == pytest.approx(fresh[0]["kl"], abs=1e-12)
        assert 0 < row["ess"] <= 1 + 1e-9
    first = steps.row(0, named=True)
    assert [each["lag"] for each in first["lags"]] == [0]
    assert first["mismatch_kl"] < 1e-6, "the engine and the trainer compute the same policy"
    assert first["ess"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_every_step_is_recomputed_to_the_last_bit(run: Run, step: int) -> None:
    replayed = replay_step(run.uri, step)
    assert replayed.difference is None
    assert replayed.equal


def test_the_critic_is_never_published(run: Run) -> None:
    store = open_weights("local", weights_uri(run.uri))
    assert not [name for name in store.read(STEPS) if "value_head" in name]
    assert events(run, EventKind.CHECKPOINT)["step"].to_list() == [2, 3]


def test_a_batch_that_was_stored_but_not_trained_on_is_trained_on_when_resumed(
    run: Run, tmp_path: Path
) -> None:
    """The manifest holds advantages and targets: they are used, not estimated again."""

    def before_the_last(rows: Rows) -> Rows:
        return [row for row in rows if row["policy_version"] < STEPS]

    changes = {"steps": before_the_last, "weights": before_the_last}
    copy = copied(run, tmp_path / "cut", changes)
    RunWriter.open(copy.uri).close(RunStatus.INTERRUPTED)
    runner.resume(copy.uri, executor="inline")
    assert copy.batches.collect().height == run.batches.collect().height
    facts = ["step", "loss", "grad_norm", "fingerprint", "value_loss", "zero_variance_groups"]
    again, first = (of.steps.select(facts).sort("step").collect() for of in (copy, run))
    assert again.equals(first)
