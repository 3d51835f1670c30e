"""A step that fails leaves no trace: weights, optimizer and random state are put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rollart_flow.trainers.step.train_state import TrainState


@contextmanager
def undone_on_error(
    state: TrainState, generator: torch.Generator, *, several: bool
) -> Iterator[None]:
    """Put everything back if anything within fails.

    Args:
        state: the state that a step changes.
        generator: its random state decides the order of minibatches.
        several: whether anything may fail after a first update; with one update, nothing has
            changed before it, and nothing is copied.
    """
    put_back = state.remember() if several else None
    before = generator.get_state()
    try:
        yield
    except BaseException:
        state.forget_gradient()
        generator.set_state(before)
        if put_back is not None:
            put_back()
        raise
