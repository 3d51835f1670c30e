"""Rows are reused where their tokens are a prefix, and overwritten oldest first."""

import numpy as np
import psutil
import pytest
import torch

from rollart_flow.engines.kv_cache import MIN_SHARED, RowCache, rows_that_fit
from rollart_flow.errors import EngineError
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.key_values import KeyValues
from rollart_flow.models.qwen3 import ModelConfig

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
)


@pytest.fixture
def cache() -> RowCache:
    """Three rows of 64 tokens."""
    return RowCache(KeyValues(CONFIG, 3, 64, torch.float32))


def _chain(*parts: tuple[int, int]) -> Int64Array:
    """Parts (token, how often), one after the other."""
    return np.concatenate([np.full(times, token, np.int64) for token, times in parts])


def test_a_chain_that_continues_a_row_takes_it_over(cache: RowCache) -> None:
    assert cache.place(_chain((1, 20))) == (0, 0, None)
    cache.release(0)
    assert cache.place(_chain((1, 20), (2, 5))) == (0, 19, None)
    assert cache.held[0] == 24


def test_a_chain_that_branches_off_is_copied(cache: RowCache) -> None:
    cache.place(_chain((1, 20), (2, 5)))
    cache.release(0)
    assert cache.place(_chain((1, 20), (3, 5))) == (1, 20, 0)


def test_rows_in_use_are_copied_from_and_never_taken(cache: RowCache) -> None:
    assert cache.place(_chain((1, 20))) == (0, 0, None)
    assert cache.place(_chain((1, 20))) == (1, 19, 0)
    assert cache.place(_chain((1, 20))) == (2, 19, 0)


def test_a_short_common_prefix_is_not_worth_a_copy(cache: RowCache) -> None:
    cache.place(_chain((1, 20)))
    assert cache.place(_chain((1, MIN_SHARED - 1), (2, 9))) == (1, 0, None)
    assert cache.place(_chain((1, MIN_SHARED), (3, 9))) == (2, MIN_SHARED, 0)


def test_the_row_that_was_released_first_is_overwritten_first(cache: RowCache) -> None:
    for token in (1, 2, 3):
        cache.place(_chain((token, 20)))
    for row in (1, 2, 0):
        cache.release(row)
    assert [cache.place(_chain((token, 20)))[0] for token in (4, 5, 6)] == [1, 2, 0]


def test_when_the_oldest_row_is_also_the_best_match_its_prefix_stays(cache: RowCache) -> None:
    for token in (1, 2, 3):
        cache.place(_chain((token, 20)))
    cache.release(1)
    assert cache.place(_chain((2, 12), (9, 4))) == (1, 12, None)


def test_swapped_rows_keep_their_tokens_and_values(cache: RowCache) -> None:
    cache.place(_chain((1, 20)))
    cache.place(_chain((2, 10)))
    cache.release(0)
    cache.tensors.keys[0, 0, 0, :20] = 1.0
    cache.tensors.keys[0, 1, 0, :10] = 2.0
    cache.swap(np.array([1]), np.array([0]))
    assert cache.active.tolist() == [True, False, False]
    assert cache.held.tolist() == [9, 19, 0]
    assert bool((cache.tensors.keys[0, 0, 0, :9] == 2.0).all())
    assert bool((cache.tensors.keys[0, 1, 0, :19] == 1.0).all())
    assert cache.match(_chain((1, 30))) == (1, 19)


def test_nothing_is_found_after_the_weights_changed(cache: RowCache) -> None:
    cache.place(_chain((1, 20)))
    cache.forget()
    assert cache.match(_chain((1, 20))) == (0, 0)


def test_on_a_cpu_only_what_is_written_takes_memory() -> None:
    before = psutil.Process().memory_info().rss
    held = KeyValues(CONFIG, 8000, 4000, torch.float32)
    held.keys[:, :3] = 1.0
    assert held.keys.nbytes > 2**28
    assert psutil.Process().memory_info().rss - before < 2**26
    assert not held.keys[:, 3].any()


def test_on_a_gpu_rows_take_at_most_half_of_what_is_free() -> None:
    each = KeyValues.row_bytes(CONFIG, 64, torch.bfloat16)
    held = KeyValues(CONFIG, 3, 64, torch.bfloat16)
    assert 3 * each == held.keys.nbytes + held.values.nbytes
    assert rows_that_fit(128, 64, each, 2 * 128 * each) == 128
    assert rows_that_fit(128, 64, each, 2 * 100 * each) == 100
    with pytest.raises(EngineError, match=r"64 rows takes .* lower policy\.max_batch"):
        rows_that_fit(128, 64, each, 2 * 63 * each)
