"""Padded decode steps give what steps of the batch's own size give, and few sizes are captured.

Here a step is computed again instead of replayed: what CUDA captures cannot run on a CPU.
"""

import numpy as np
import pytest
import torch

from rollart_flow.engines.graphs import LEAST_POSITIONS, Compute, DecodeGraphs, padded
from rollart_flow.models.cached import CachedQwen3
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.key_values import KeyValues
from tests.trainers.cases import CONFIG, initial_weights

ROWS, LENGTH = 6, 200


class Parts:
    """A model, a cache whose rows hold a few tokens, and what was captured."""

    def __init__(self) -> None:
        self.model = CachedQwen3(CONFIG, initial_weights(), torch.float32)
        self.cache = KeyValues(CONFIG, ROWS, LENGTH, torch.float32)
        self.captured: list[Compute] = []
        self.graphs = DecodeGraphs(self.model, self.cache, ROWS, self.capture)
        self.held: Int64Array = np.array([7, 3, 11, 5, 9, 2])
        chains = np.arange(ROWS * 11).reshape(ROWS, 11) % CONFIG.vocab_size
        rows = np.arange(ROWS)
        self.model.prefill(self.cache, chains, rows, np.zeros_like(rows), self.held)

    def capture(self, compute: Compute) -> Compute:
        self.captured.append(compute)
        return compute

    def feed(self, *active: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array | None]:
        """Arguments of `decode` where some rows are active."""
        top = active[-1] + 1
        mask = np.isin(np.arange(top), active)
        held = np.where(mask, self.held[:top], 0)
        places = np.where(mask, held, LENGTH)
        return held + 1, held, places, np.array(active) if len(active) < top else None


@pytest.mark.parametrize("active", [(0,), (0, 1, 2), (1, 4), (0, 1, 2, 3, 4, 5)], ids=str)
def test_a_padded_step_gives_the_logits_of_the_rows_and_changes_no_other_row(
    active: tuple[int, ...],
) -> None:
    parts, plain = Parts(), Parts()
    wanted = plain.model.decode(plain.cache, *plain.feed(*active))
    found = parts.graphs.decode(*parts.feed(*active))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    for side in ("keys", "values"):
        mine, other = (getattr(each.cache, side)[:, :, :, :LENGTH] for each in (parts, plain))
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_a_size_is_captured_once() -> None:
    parts = Parts()
    for active in ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2), (0,), (0, 1, 2, 3, 4)):
        parts.graphs.decode(*parts.feed(*active))
    assert len(parts.captured) == len(parts.graphs) == 3, "of 4, 1 and all 6 rows"


def test_new_weights_are_what_a_captured_step_reads() -> None:
    parts = Parts()
    before = parts.graphs.decode(*parts.feed(0, 1)).clone()
    parts.model.load(initial_weights(seed=1))
    after = parts.graphs.decode(*parts.feed(0, 1))
    assert len(parts.captured) == 1
    assert not torch.allclose(before, after, atol=1e-3)
    plain = parts.model.decode(parts.cache, *parts.feed(0, 1))
    torch.testing.assert_close(after, plain, atol=1e-5, rtol=1e-5)


def test_sizes_are_powers_of_two() -> None:
    assert [padded(count) for count in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert padded(5, least=LEAST_POSITIONS) == LEAST_POSITIONS
