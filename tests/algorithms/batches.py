"""Batches as estimators see them, made of turns, and strategies that make many of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests import builders
from tests.builders import batch_table


@dataclass(frozen=True, slots=True)
class T:
    """A turn: tokens of its observation and its action, and what the environment gave."""

    seen: int
    acted: int
    reward: float = 0.0
    observation: str = "somewhere"


@dataclass(frozen=True, slots=True)
class Row:
    """A trajectory of a batch; lists of floats have one for each action token."""

    group: str
    reward: float
    turns: tuple[T, ...] = (T(1, 2),)
    values: tuple[float, ...] = ()
    behavior: tuple[float, ...] = ()
    old: tuple[float, ...] = ()
    domain: str = "one"
    staleness: int = 0

    @property
    def mask(self) -> list[bool]:
        return [own for turn in self.turns for own in [False] * turn.seen + [True] * turn.acted]

    @property
    def actions(self) -> int:
        return sum(turn.acted for turn in self.turns)


def table(rows: Sequence[Row]) -> pa.Table:
    """The columns of `rows` that estimators, aggregations and weights read."""
    return batch_table(
        {
            "group_id": [row.group for row in rows],
            "domain": [row.domain for row in rows],
            "reward": [row.reward for row in rows],
            "action_mask": [row.mask for row in rows],
            "logprobs": [_spread(row, row.behavior) for row in rows],
            "turns": [_turns(row) for row in rows],
            "staleness": [row.staleness for row in rows],
            "values": pa.array([row.values for row in rows], pa.list_(pa.float32())),
            "old_logprobs": pa.array([row.old for row in rows], pa.list_(pa.float32())),
        }
    )


def _spread(row: Row, values: Sequence[float]) -> list[float]:
    """Values of action tokens, among zeros for the observations."""
    rest = iter(values or [0.0] * row.actions)
    return [next(rest) if own else 0.0 for own in row.mask]


def _turns(row: Row) -> list[dict[str, Any]]:
    found, at = [], 0
    for turn in row.turns:
        end = at + turn.seen + turn.acted
        made = builders.turn("go", turn.reward, start=at, end=end, observation=turn.observation)
        found.append(asdict(made))
        at = end
    return found


FLOATS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.75])
"""Few, and exact in float32, so that equal ones meet."""


@st.composite
def _row(draw: st.DrawFn) -> Row:
    places = st.sampled_from(["hall", "door", "cellar"])
    some = st.builds(T, st.integers(1, 2), st.integers(0, 3), FLOATS, places)
    first = st.builds(T, st.integers(1, 2), st.integers(1, 3), FLOATS, places)
    turns = (draw(first), *draw(st.lists(some, max_size=3)))
    count = sum(turn.acted for turn in turns)
    numbers = st.lists(FLOATS, min_size=count, max_size=count).map(tuple)
    return Row(
        group=draw(st.sampled_from("abc")),
        reward=draw(FLOATS),
        turns=turns,
        values=draw(numbers),
        behavior=draw(numbers),
        old=draw(numbers),
        domain=draw(st.sampled_from(["one", "two"])),
        staleness=draw(st.integers(0, 4)),
    )


ROWS = st.lists(_row(), min_size=1, max_size=8)
"""Batches of groups of unequal size, down to a single attempt."""
