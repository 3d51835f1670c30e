"""The reference policy: the start of the run, or a later version once it is there."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, batch_of

LATER = grpo(kl=1.0, reference=2)


def start(algorithm: Algorithm = LATER) -> EmbeddedTrainer:
    return EmbeddedTrainer(CONFIG, initial_weights(), algorithm, CUT)


def train(trainer: EmbeddedTrainer, to: int) -> list[str]:
    """Fingerprints of the versions up to one."""
    return [
        trainer.train_step(step, batch_of(step)).fingerprint
        for step in range(trainer.version + 1, to + 1)
    ]


def test_there_is_no_penalty_until_the_version_is_there() -> None:
    later, free, first = (train(start(a), 4) for a in (LATER, grpo(), grpo(kl=1.0)))
    assert later[:2] == free[:2]
    assert later[2] != free[2]
    assert later[0] != first[0]


def test_the_penalty_is_towards_that_very_version() -> None:
    """A trainer that starts with version 2's weights, with reference 0, has the same gradient."""
    trainer = start()
    train(trainer, 2)
    fresh = EmbeddedTrainer(CONFIG, trainer.weights(), grpo(kl=1.0), CUT)
    rows = batch_of(3)
    one = replace(CUT, minibatches=1, epochs=1)
    trainer.settings = fresh.settings = one
    assert trainer.train_step(3, rows).loss == fresh.train_step(1, rows).loss


@pytest.mark.parametrize("checkpoint", [1, 2, 3])
def test_it_travels_in_checkpoints(tmp_path: Path, checkpoint: int) -> None:
    trainer = start()
    train(trainer, checkpoint)
    trainer.save(tmp_path / "checkpoint")
    expected = train(trainer, 5)
    again = start()
    again.load(tmp_path / "checkpoint")
    assert train(again, 5) == expected


def test_going_back_takes_the_reference_away_again(tmp_path: Path) -> None:
    trainer = start()
    trainer.save(tmp_path / "start")
    expected = train(trainer, 4)
    trainer.load(tmp_path / "start")
    assert train(trainer, 4) == expected


def test_a_fork_refers_to_where_it_started(tmp_path: Path) -> None:
    """As `fork` leaves a checkpoint: its weights are the reference of whoever goes on from it."""
    parent = start(grpo())
    train(parent, 3)
    parent.save(tmp_path / "forked")
    found = read_checkpoint(tmp_path / "forked")
    write_checkpoint(tmp_path / "forked", replace(found, reference=fingerprint(found.weights)))
    start_of_fork = parent.weights()
    for algorithm in (LATER, grpo(kl=1.0)):
        fork = EmbeddedTrainer(CONFIG, start_of_fork, algorithm, CUT)
        fork.load(tmp_path / "forked")
        penalized = train(fork, 5)
        fork.save(tmp_path / "later")
        again = EmbeddedTrainer(CONFIG, start_of_fork, algorithm, CUT)
        again.load(tmp_path / "later")
        assert train(again, 6) == train(fork, 6)
        parent.load(tmp_path / "forked")
        assert train(parent, 5)[1] != penalized[1]


def test_a_checkpoint_of_another_reference_is_refused(tmp_path: Path) -> None:
    other = start(grpo())
    train(other, 3)
    other.save(tmp_path / "checkpoint")
    for algorithm in (LATER, grpo(kl=1.0)):
        trainer = start(algorithm)
        with pytest.raises(TrainerError, match="another reference"):
            trainer.load(tmp_path / "checkpoint")
        assert train(trainer, 1) == train(start(algorithm), 1), "nothing of it was taken"
