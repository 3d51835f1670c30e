"""The games of GEM's text suite: `GemGame("Sokoban-v0-easy")`, `GemGame("Wordle-v0-hard")`, ...

The observation is what GEM shows, the action a text with `\\boxed{...}`; a text without one is put
into a box. GEM draws from Python's global generator: each environment keeps its state for itself,
and leaves the generator as it found it.

Invariants: the task's number decides the board and all that follows from the actions, and no game
uses the network. Hangman, Wordle and WordSearch, for which GEM downloads a list of words, take the
words of a story that reasoning-gym ships. Boards of the fifteen puzzle that cannot be solved, half
of those that GEM makes, are passed over, as are solved ones.

Sources: GEM, https://github.com/axon-rl/gem; ROLLART Table 1 (GEM-game).
"""

import json
import random as shared_random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations, count
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.gem_solutions import EXAMPLES, gold_moves
from rollart_flow.envs.numbered import NumberedDomain
from rollart_flow.envs.optional import optional_module
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Task
from rollart_flow.validation import check_count

_BOXED = re.compile(r"\\boxed\{")
_NAME = re.compile(r"[A-Za-z0-9]+-v\d+(?:-[a-z-]+)?(?:-v\d+)?")
_LONGEST = 8000
_SLOW = ("Sokoban", "Sudoku")
"""Games whose boards take GEM more than a millisecond, up to a minute for hard Sokoban."""

_shared_generators = Lock()


@cache
def story_words() -> tuple[str, ...]:
    """Return the words of at least three letters of a story that reasoning-gym ships, sorted."""
    optional_module("reasoning_gym.data", extra="games")
    story = files("reasoning_gym.data").joinpath("in_the_year_2889.txt").read_text("utf-8")
    return tuple(sorted(set(re.findall(r"\b[a-z]{3,}\b", story))))


class _Generators:
    """The state of Python's global generator as one environment left it."""

    def __init__(self) -> None:
        self._own: Any = None

    @contextmanager
    def own(self, *, seeds: bool = False) -> Iterator[None]:
        """Put the environment's state into the generator for the time of a call.

        Args:
            seeds: whether the call seeds NumPy's global generator too, which no game draws from.
        """
        import numpy as np

        with _shared_generators:
            before = shared_random.getstate()
            numpy_before = np.random.get_state() if seeds else None
            if self._own is not None:
                shared_random.setstate(self._own)
            try:
                yield
            finally:
                self._own = shared_random.getstate()
                shared_random.setstate(before)
                if numpy_before is not None:
                    np.random.set_state(numpy_before)


class GemGameEnvironment(Environment):
    """A game of GEM. `info["success"]`: whether it was won."""

    inline = True  # a step takes some 50 us
    version = "gem-game/1"

    def __init__(self, settings: "GemGame") -> None:
        registration = optional_module("gem.envs.registration", extra="games")
        registry = registration.ENV_REGISTRY
        known = sorted(name.removeprefix("game:") for name in registry if "game:" in name)
        if settings.game not in known:
            raise EnvironmentFailedError(
                f"gem-llm has no game {settings.game!r}; the installed version has "
                f"{', '.join(known)}"
            )
        self._settings = settings
        self._generators = _Generators()
        _without_downloads(registry[f"game:{settings.game}"].entry_point)
        with self._generators.own(seeds=True):
            shared_random.seed(0)  # making a game plays it once, and Sokoban takes its time to
            self.game: Any = registration.make(f"game:{settings.game}")

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Set the board of a task `{"number": 7}` up."""
        number = json.loads(task)["number"]
        with self._generators.own(seeds=True):
            for attempt in count():
                board = Random(f"gem/{number}/{attempt}").randrange(2**31)
                told, info = self.game.reset(seed=board)
                if _playable(self.game):
                    break
        shown = "" if self._settings.brief else f"{told}\n"
        return self._settings.instructions + _cut(shown + info.get("suffix", "")), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Make the move in the last box of a text."""
        boxed = action if _BOXED.search(action) else f"\\boxed{{{action.strip()}}}"
        with self._generators.own():
            told, reward, terminated, truncated, info = self.game.step(boxed)
        won = bool(terminated) and not truncated and told.startswith("Congratulations")
        shown = _cut(f"{told}\n{info.get('suffix', '')}")
        # GEM says both of a game whose turns are over.
        ended = bool(terminated) and not truncated
        return shown, float(reward), ended, bool(truncated), {"success": won}

    def gold(self) -> list[str] | None:
        """Return moves that win from here; None if none are known."""
        with self._generators.own():
            return gold_moves(self.game)


class SlowGemGameEnvironment(GemGameEnvironment):
    """A game of GEM whose boards take it long."""

    inline = False


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _without_downloads(entry_point: str) -> None:
    """Give the words of a game that downloads some."""
    module, _, name = entry_point.partition(":")
    game = sys.modules[getattr(optional_module(module, extra="games"), name).__module__]
    if hasattr(game, "words"):
        game.words = SimpleNamespace(words=lambda _: list(story_words()))  # type: ignore[attr-defined]
    if hasattr(game, "nltk"):
        game.nltk = SimpleNamespace(download=lambda _: None)  # type: ignore[attr-defined]


def _playable(game: Any) -> bool:
    """Return whether a board can be solved and is not yet, which GEM does not see to in the fifteen
    puzzle."""
    size = getattr(game, "num_rows", None)
    if type(game).__name__ != "FifteenPuzzleEnv" or size is None:
        return True
    tiles = [tile for row in game.board for tile in row]
    inversions = sum(a > b for a, b in combinations([t for t in tiles if t is not None], 2))
    from_below = size - tiles.index(None) // size
    solvable = (inversions + (0 if size % 2 else from_below - 1)) % 2 == 0
    return solvable and not game._is_solved()


@dataclass(frozen=True)
class GemGame(NumberedDomain):
    """Play a game of GEM; needs the extra `games`.

    The Sokoban of GEM takes up to a minute for a hard board, `Sokoban` of this library some
    milliseconds. Raises SettingsError if the name of the game has another form.
    """

    game: str
    """Name in GEM's registry without "game:", such as "Minesweeper-v0-easy". It is the name of the
    domain."""
    brief: bool = False
    """Show only the board or the question at first, without GEM's rules."""
    max_turns: int = 100
    """Turns after which an episode is truncated; each game has a limit of its own besides."""
    instructions: str = ""
    """Put before the first observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _NAME.fullmatch(self.game):
            raise SettingsError(
                f'GemGame: game is {self.game!r}; name one such as "Sokoban-v0-easy", without '
                '"game:"'
            )
        check_count("GemGame: max_turns", self.max_turns, low=1)

    @property
    def name(self) -> str:  # type: ignore[override]  # a setting decides it
        """The name of the game."""
        return self.game

    @property
    def environment(self) -> type[Environment]:  # type: ignore[override]  # a setting decides it
        """Inline, but for games whose boards take GEM long."""
        return SlowGemGameEnvironment if self._kind in _SLOW else GemGameEnvironment

    def make(self) -> GemGameEnvironment:
        slow = self._kind in _SLOW
        return SlowGemGameEnvironment(self) if slow else GemGameEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the task whose number decides the board."""
        return Task(f"{self.name}/{number}", self.name, json.dumps({"number": number}))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return moves that win, which a new game is asked for; empty if it knows none."""
        environment = self.make()
        environment.reset(0, task.payload)
        gold = environment.gold()
        return {} if gold is None else {"gold": gold, "noop": ["I do nothing."]}

    def example_action(self, task: Task, random: Random) -> str:
        if self._kind not in EXAMPLES:
            raise SettingsError(f"GemGame: no example of a move in {self.game} is known")
        return EXAMPLES[self._kind](random)

    @property
    def _kind(self) -> str:
        return self.game.partition("-")[0]
