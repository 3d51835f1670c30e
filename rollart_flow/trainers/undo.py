"""A step that fails leaves no trace: weights, optimizer and random state are put back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undone_on_error(
    parameters: Collection[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    *,
    several: bool,
) -> Iterator[None]:
    """Put everything back if anything within fails.

    Args:
        parameters: what is trained.
        optimizer: its state is by parameter.
        generator: draws the order of minibatches.
        several: whether anything may fail after a first update; with one update, nothing has
            changed before it, and nothing is copied.
    """
    weights = [p.detach().clone() for p in parameters] if several else []
    state = {
        parameter: {kind: tensor.clone() for kind, tensor in tensors.items()}
        for parameter, tensors in (optimizer.state.items() if several else ())
    }
    drawn = generator.get_state()
    try:
        yield
    except BaseException:
        optimizer.zero_grad(set_to_none=True)
        generator.set_state(drawn)
        if several:
            with torch.no_grad():
                for parameter, tensor in zip(parameters, weights, strict=True):
                    parameter.copy_(tensor)
            optimizer.state.clear()
            optimizer.state.update(state)
        raise
