"""Recomputation of one training step of a stored run, in this process, without Ray.

The replay loads the nearest earlier checkpoint and trains the steps in between again. It checks
this invariant: on the same machine, a recomputed step gives the recorded loss, gradient norm, and
weights, to the last bit.
"""

from dataclasses import dataclass

from rollart_flow.runner.retrain import (
    Facts,
    bring_to,
    recorded_step,
    retrain,
    stored_pipeline,
    stored_trainer,
)
from rollart_flow.store import Run


@dataclass(frozen=True, slots=True)
class StepReplay:
    """Recorded and recomputed results of one training step."""

    step: int
    equal: bool
    recorded: Facts
    """Values of loss, grad_norm, and fingerprint, as in `steps`."""
    recomputed: Facts
    """Recomputed values, with the same keys as `recorded`."""
    difference: str | None
    """First difference as one line, possibly in an earlier step that had to be recomputed."""


def replay_step(run_uri: str, step: int) -> StepReplay:
    """Recompute a step from its stored batch and the trainer's state before it.

    The replay uses the recorded number of threads. If the result differs and the kernels do too
    (another torch version, another processor), the message about the difference says so.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: the step is not recorded.
        TrainerError: the run was forked and lacks the checkpoint that it started from.
        StoreError: the batch of this step, or of an earlier step to recompute, is not stored.
    """
    run = Run(run_uri)
    threads = recorded_step(run, step)["threads"]
    trainer = stored_trainer(run, stored_pipeline(run), threads)
    on_the_way = None
    for before in bring_to(run, trainer, step - 1):
        if not before.same_weights:
            on_the_way = on_the_way or f"on the way, in step {before.step}: {before.difference}"
    again = retrain(run, trainer, step)
    difference = on_the_way or again.difference
    return StepReplay(step, difference is None, again.recorded, again.recomputed, difference)
