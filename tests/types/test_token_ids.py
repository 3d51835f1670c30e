"""Token ids in a buffer are those of a tuple, whatever is added to the buffer later."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.types.token_ids import TokenBuffer, TokenIds, common_tokens

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=9)


@given(IDS, st.integers(-12, 12), st.integers(-12, 12))
def test_they_are_read_as_a_tuple_is(ids: list[int], start: int, end: int) -> None:
    made, wanted = TokenIds.of(ids), tuple(ids)
    assert made == wanted
    assert wanted == made
    assert made == TokenIds.of(ids)
    assert hash(made) == hash(wanted)
    assert made in {wanted}
    assert made != (*wanted, 1)
    assert made != TokenIds.of([*ids, 1])
    assert made[start:end] == wanted[start:end]
    assert [*made] == ids
    assert (len(made), repr(made), bool(made)) == (len(ids), repr(wanted), bool(ids))
    if ids:
        assert (made[-1], min(made), ids[0] in made) == (ids[-1], min(ids), True)


@given(IDS)
def test_they_cross_processes_and_become_arrays(ids: list[int]) -> None:
    made = TokenIds.of(ids)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert isinstance(again, TokenIds)
    assert np.array(made, np.int64).tolist() == ids
    view = np.asarray(made)
    assert view.dtype == np.int32
    assert np.shares_memory(view, np.asarray(made)) == bool(ids), "NumPy has the buffer itself"


@given(st.lists(IDS | st.integers(0, 9), max_size=12))
def test_what_was_read_stays_as_it_is(steps: list[list[int] | int]) -> None:
    buffer, ids = TokenBuffer(), list[int]()
    read: list[tuple[TokenIds, tuple[int, ...]]] = [(buffer.read(), ())]
    for step in steps:
        if isinstance(step, int):
            buffer.cut(step)
            del ids[step:]
        else:
            buffer.extend(step)
            ids += step
        read.append((buffer.read(), tuple(ids)))
        assert len(buffer) == len(ids)
    assert all(found == wanted for found, wanted in read)


def test_what_was_read_is_shared_and_read_only() -> None:
    buffer = TokenBuffer()
    buffer.extend(range(100))
    first = np.asarray(buffer.read())
    buffer.extend([7])
    assert np.shares_memory(first, np.asarray(buffer.read()))
    assert not first.flags.writeable


def test_an_id_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        TokenIds.of([2**31])


@given(IDS, IDS, IDS, st.integers(0, 3))
def test_a_common_beginning_is_found(
    first: list[int], one: list[int], two: list[int], times: int
) -> None:
    first = first * 700 ** (times // 2)
    chains = [TokenIds.of(first + one), TokenIds.of(first + two)]
    wanted = common_tokens(first + one, first + two)
    assert chains[0].common(chains[1]) == chains[1].common(chains[0]) == wanted
    assert chains[0].prefix(len(first)).common(chains[0]) == len(first)


@given(IDS, IDS)
def test_a_buffer_begins_with_other_tokens(first: list[int], more: list[int]) -> None:
    former = TokenIds.of(first)
    buffer = TokenBuffer(former)
    buffer.extend(more)
    assert former == tuple(first)
    assert buffer.read() == (*first, *more)
