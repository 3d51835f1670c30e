"""Any environment of Gymnasium with discrete actions, played in text.

    GymnasiumText("Taxi-v4")
    GymnasiumText("CartPole-v1", actions=("left", "right"), success_reward=1.0, max_turns=200)

The observation is what the environment renders as text, its colours written out as `<on yellow: >`,
or else the values of the observation. The action is the last name of an action in the text, or the
last number of one.

Invariant: the task's number seeds everything that is random, so that all attempts at it meet the
same start and the same chance.

Source: https://gymnasium.farama.org/environments/toy_text/
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.gymnasium_solutions import shortest_way
from rollart_flow.envs.numbered import NumberedDomain
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Task
from rollart_flow.validation import check_count

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED = re.compile(r"((?:\x1b\[(?!0m)[\d;]*m)+)([^\x1b]*)(?:\x1b\[0m)*")
_LONGEST = 4000


class _Known(NamedTuple):
    """Facts about one toy game, from Gymnasium's documentation."""

    actions: tuple[str, ...]
    success_reward: float
    values: tuple[str, ...] = ()
    """Names of the observation's values."""


_KNOWN = {
    "Taxi": _Known(("south", "north", "east", "west", "pickup", "dropoff"), 20.0),
    "CliffWalking": _Known(("up", "right", "down", "left"), -1.0),
    "FrozenLake": _Known(("left", "down", "right", "up"), 1.0),
    "Blackjack": _Known(("stick", "hit"), 1.0, ("own sum", "dealer shows", "usable ace")),
}
"""Known environments by the name before the version; inline, since a step takes microseconds."""


def plain_text(rendered: str) -> str:
    """Return rendered text with its colours written out.

    A space on yellow, `\\x1b[43m \\x1b[0m`, becomes `<on yellow: >`.
    """

    def written(found: re.Match[str]) -> str:
        codes = [int(code) for code in re.findall(r"\d+", found[1])]
        names = [_COLOURS[code - 30] for code in codes if 30 <= code <= 37]
        names += [f"on {_COLOURS[code - 40]}" for code in codes if 40 <= code <= 47]
        return f"<{' '.join(names)}:{found[2]}>" if names else found[2]

    return _COLOURED.sub(written, rendered).strip("\n").replace("\x1b[0m", "")


def described_values(observation: Any, names: tuple[str, ...] = ()) -> str:
    """Return an observation as its values, each beside its name where it has one."""
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {described_values(each)}" for key, each in observation.items())
    values = list(observation) if hasattr(observation, "__len__") else [observation]
    texts = [f"{float(v):.4g}" if hasattr(v, "__float__") else described_values(v) for v in values]
    return ", ".join(map(": ".join, zip(names, texts, strict=True)) if names else texts)


class GymnasiumTextEnvironment(Environment):
    """One environment of Gymnasium. `info["success"]`: whether it ended with enough reward;
    `info["invalid_actions"]`: how many actions had no name and no number of an action."""

    version = "gymnasium-text/1"

    def __init__(self, settings: "GymnasiumText") -> None:
        import gymnasium

        self._settings = settings
        options = {"disable_env_checker": True, "max_episode_steps": -1, **settings.options}
        try:
            made = gymnasium.make(settings.game, **options)
            if "ansi" in made.metadata.get("render_modes", ()) and "render_mode" not in options:
                made.close()
                made = gymnasium.make(settings.game, render_mode="ansi", **options)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise EnvironmentFailedError(f"Gymnasium: {settings.game}: {error}") from error
        if not isinstance(made.action_space, gymnasium.spaces.Discrete):
            raise EnvironmentFailedError(
                f"Gymnasium: {settings.game} has actions {made.action_space}; only Discrete ones "
                "can be named in text"
            )
        self._game: Any = made.unwrapped
        self._draws = made.render_mode == "ansi"
        self._known = _known(settings.game)
        self._first = int(made.action_space.start)
        self._actions = self._named(int(made.action_space.n))
        words = sorted(map(re.escape, self._actions), key=len, reverse=True)
        self._word = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)
        self._turns = self._invalid = 0

    def _named(self, count: int) -> tuple[str, ...]:
        names = self._settings.actions or (self._known.actions if self._known else ())
        names = names or tuple(map(str, range(self._first, self._first + count)))
        if len(names) != count:
            raise EnvironmentFailedError(
                f"Gymnasium: {self._settings.game} has {count} actions, but {len(names)} names: "
                f"{', '.join(names)}"
            )
        return tuple(name.lower() for name in names)

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Start the task `{"number": 7}`, whose number is Gymnasium's seed."""
        observation, _ = self._game.reset(seed=json.loads(task)["number"])
        self._turns = self._invalid = 0
        return self._settings.instructions + self._shown(observation), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Act once. Truncated after `max_turns` turns, valid or not."""
        self._turns += 1
        last = self._turns >= self._settings.max_turns
        number = self._number(action)
        if number is None:
            self._invalid += 1
            told = f"No action is named. The actions are: {', '.join(self._actions)}."
            return told, self._settings.invalid_reward, False, last, self._info(False)
        observation, gain, terminated, truncated, _ = self._game.step(number)
        solved = bool(terminated) and float(gain) >= self._settings.solved_from(self._known)
        reward = float(solved) if self._settings.sparse else float(gain)
        ends = bool(truncated) or (last and not terminated)
        return self._shown(observation), reward, bool(terminated), ends, self._info(solved)

    def way(self, task: str) -> list[str] | None:
        """Return names of actions that solve a task; None if the game has no model to search."""
        self.reset(0, task)
        threshold = self._settings.solved_from(self._known)
        numbers = shortest_way(self._game, self._settings.max_turns, lambda r: r >= threshold)
        return None if numbers is None else [self._actions[n - self._first] for n in numbers]

    def close(self) -> None:
        self._game.close()

    def _number(self, action: str) -> int | None:
        words = self._word.findall(action)
        if words:
            return self._first + self._actions.index(words[-1].lower())
        numbers = [int(n) for n in re.findall(r"(?<![\w.-])\d{1,9}(?![\w.])", action)]
        known = [n for n in numbers if 0 <= n - self._first < len(self._actions)]
        return known[-1] if known else None

    def _info(self, solved: bool) -> Info:
        return {"success": solved, "invalid_actions": self._invalid}

    def _shown(self, observation: Any) -> str:
        if self._draws:
            text = plain_text(str(self._game.render()))
        else:
            text = described_values(observation, self._known.values if self._known else ())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class InlineGymnasiumTextEnvironment(GymnasiumTextEnvironment):
    """One of Gymnasium's toy games, whose steps take microseconds."""

    inline = True


def _known(game: str) -> _Known | None:
    return _KNOWN.get(game.rpartition("-v")[0] or game)


@dataclass(frozen=True)
class GymnasiumText(NumberedDomain):
    """Play an environment of Gymnasium in text.

    Names of actions and the reward of success are known for Taxi, CliffWalking, FrozenLake and
    Blackjack. Raises SettingsError if the game has no name; what Gymnasium refuses fails the reset.
    """

    game: str
    """Id in Gymnasium's registry, such as "Taxi-v4". It is the name of the domain, with "-" for
    "/"."""
    actions: tuple[str, ...] = ()
    """Names of the actions in the order of their numbers; empty: the known ones, or numbers."""
    max_turns: int = 100
    """Turns after which an episode is truncated."""
    success_reward: float | None = None
    """An episode is solved if its last step ends it with at least this reward; None: the known one,
    or 1."""
    sparse: bool = False
    """Pay 1 for a solved episode and 0 otherwise, in place of the rewards of Gymnasium."""
    invalid_reward: float = -0.1
    """Reward of an action that names none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `gymnasium.make`."""
    solution: Callable[[int], Sequence[str]] | None = None
    """Actions that solve the task of a number, for `rollart tasks check`; None: those that are
    found in the model of a game that exposes one, as FrozenLake, Taxi and CliffWalking do."""
    instructions: str = ""
    """Put before the first observation; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.game:
            raise SettingsError('GymnasiumText: game is empty; name one such as "Taxi-v4"')
        object.__setattr__(self, "actions", tuple(self.actions))
        if len({name.lower() for name in self.actions}) < len(self.actions) or "" in self.actions:
            raise SettingsError(
                f"GymnasiumText: actions is {self.actions!r}; each needs a name of its own"
            )
        check_count("GymnasiumText: max_turns", self.max_turns, low=1)

    @property
    def name(self) -> str:  # type: ignore[override]  # a setting decides it
        """The id of the game, with "-" for "/"."""
        return self.game.replace("/", "-")

    @property
    def environment(self) -> type[Environment]:  # type: ignore[override]  # a setting decides it
        """Inline for Gymnasium's toy games, else in a process."""
        return InlineGymnasiumTextEnvironment if _known(self.game) else GymnasiumTextEnvironment

    def make(self) -> GymnasiumTextEnvironment:
        inline = _known(self.game) is not None
        return InlineGymnasiumTextEnvironment(self) if inline else GymnasiumTextEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the task whose number is Gymnasium's seed."""
        return Task(f"{self.name}/{number}", self.name, json.dumps({"number": number}))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return the gold that `solution` gives, or that is found in the game's model.

        None is known for Blackjack, where the best play loses half of the games.
        """
        if self.solution is not None:
            gold: Sequence[str] | None = self.solution(json.loads(task.payload)["number"])
        else:
            game = self.make()
            gold = game.way(task.payload)
            game.close()
        return {"gold": list(gold), "noop": [""] * self.max_turns} if gold else {}

    def example_action(self, task: Task, random: Random) -> str:
        known = _known(self.game)
        if not self.actions and not known:
            raise SettingsError(f"GymnasiumText: give actions of {self.game} for a warm start")
        return random.choice(self.actions or (known.actions if known else ()))

    def solved_from(self, known: _Known | None) -> float:
        """Return the reward from which an episode that ends is solved."""
        if self.success_reward is not None:
            return self.success_reward
        return known.success_reward if known else 1.0
