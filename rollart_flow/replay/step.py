"""Recompute one training step of a stored run, in this process, without Ray.

From the nearest checkpoint before it, the steps between are trained again on the way. The invariant
that is checked (design, invariant 4): a stored step recomputed gives the recorded loss, gradient
norm and weights, to the last bit on the same machine.
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
    """A step as it was recorded and as it was recomputed."""

    step: int
    equal: bool
    recorded: Facts
    """loss, grad_norm and fingerprint, as in `steps`."""
    recomputed: Facts
    """The same keys."""
    difference: str | None
    """The first difference in one line, which may be in a step on the way to this one."""


def replay_step(run_uri: str, step: int) -> StepReplay:
    """Recompute a step from its stored batch and the trainer's state before it.

    The threads that were recorded are used; where kernels differ from the recorded ones (another
    torch, another processor) and the result does too, the difference says so.

    Args:
        run_uri: address of the run.
        step: a recorded one.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: the step is not recorded.
        TrainerError: the run was forked and lacks the checkpoint that it started from.
        StoreError: the batch, or that of a step on the way, is not stored.
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
