"""Actions that solve a task of Gymnasium's toy games, searched for in the game's own model.

A game that exposes its model (`P`) has few states, and the task's seed decides all chance, one draw
for each step. So what each action leads to is known at every turn, as in value iteration with a
known horizon, and the first way to the end that is found is a shortest one. Such a way knows the
chance of its task, as no policy can: it shows that the task can be solved, not how to play.
"""

from collections.abc import Callable, Hashable
from copy import copy, deepcopy
from typing import Any

_MOST_STEPS = 200_000
"""Steps of the game that are tried at most for one task."""


def shortest_way(game: Any, turns: int, is_solved: Callable[[float], bool]) -> list[int] | None:
    """Return numbers of actions that solve a game; None if there are none, or no model is exposed.

    Args:
        game: a game that was just reset; it stays as it is.
        turns: number of actions at most.
        is_solved: whether a reward with which the game ends solves it.
    """
    if not hasattr(game, "P") or not hasattr(game, "s"):
        return None
    layer: list[tuple[Any, list[int]]] = [(game, [])]
    tried = 0
    for _ in range(turns):
        reached: dict[Hashable, tuple[Any, list[int]]] = {}
        for state, way in layer:
            for action in state.P[state.s]:
                if (tried := tried + 1) > _MOST_STEPS:
                    return None
                after = _copied(state)
                _, gain, ended, truncated, _ = after.step(action)
                if ended and is_solved(float(gain)):
                    return [*way, int(action)]
                if not ended and not truncated:
                    reached.setdefault(_key(after), (after, [*way, int(action)]))
        layer = list(reached.values())
    return None


def _copied(game: Any) -> Any:
    """Return a game in the same state, which shares the model, with random numbers of its own."""
    other = copy(game)
    other.np_random = deepcopy(game.np_random)
    return other


def _key(game: Any) -> Hashable:
    """Return what decides how a game goes on: its state, and the random numbers to come."""
    return game.s, getattr(game, "fickle_step", False), str(game.np_random.bit_generator.state)
