"""FrozenLake: Gymnasium's own FrozenLake-v1, several turns, one word an action.

As text, the observation is the grid with P in place of the tile that the player stands on, one row
a line and nothing else, since every character is a token of a character-level model. With `visual`,
it is the frame that Gymnasium draws (ROLLART section 7.1, Table 1). The reward is the one of
Gymnasium: 1 at the goal, 0 elsewhere; what is no action moves nothing and gives -0.1.

Invariant: all randomness comes from the reset's seed and the task, and the task holds its map, so
that recorded actions replay to the recorded observations.

Source: https://gymnasium.farama.org/environments/toy_text/frozen_lake/
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Any, ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Image, Observation, Split, Task
from rollart_flow.types.messages import user

ACTIONS = ("left", "down", "right", "up")
"""In the order of Gymnasium's action numbers."""

INVALID_ACTION_REWARD = -0.1

_FIXED_SIZES = (4, 8)
_EVALUATION_MAPS = 64
_MAP_SEEDS = 2**31
_WORD = re.compile(r"\b(?:" + "|".join(ACTIONS) + r")\b", re.IGNORECASE)


def parse_action(text: str) -> int | None:
    """Number of the last action word in a text, whatever its case; None where there is none."""
    words = _WORD.findall(text)
    return ACTIONS.index(words[-1].lower()) if words else None


class FrozenLakeEnvironment(Environment):
    """Gymnasium's FrozenLake-v1. `info["success"]`: whether the goal was reached."""

    inline = True  # a step takes some 10 us, a frame or building another map under 1 ms
    version = "FrozenLake-v1/text-1"

    def __init__(self, settings: "FrozenLake") -> None:
        import gymnasium

        if settings.visual:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # frames need no display
        self._make = gymnasium.make
        self._settings = settings
        self._map: list[str] = []
        self._lake: Any = None
        self._turns = 0

    def reset(self, seed: int, task: str) -> tuple[Any, Info]:
        """Put the player on S of the task's map: `{"map": ["SFFF", ...]}`."""
        rows: list[str] = json.loads(task)["map"]
        if rows != self._map:
            self._lake = self._make(
                "FrozenLake-v1",
                desc=rows,
                is_slippery=self._settings.slippery,
                disable_env_checker=True,
                max_episode_steps=-1,  # turns are counted here: an invalid action is one too
                render_mode="rgb_array" if self._settings.visual else None,
            ).unwrapped
            self._map = rows
            # Read before the first frame, which is drawn in this size.
            self._lake.cell_size = (self._settings.tile_pixels,) * 2
            self._lake.window_size = tuple(self._settings.tile_pixels * n for n in self._shape())
        self._lake.reset(seed=seed)
        self._turns = 0
        if self._settings.visual:
            return self._frame(self._settings.instructions), {}
        return self._settings.instructions + self._grid(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, Info]:
        """Move once. Truncated after `max_turns` turns, valid or not."""
        if self._lake is None:
            raise EnvironmentFailedError("FrozenLake: step before reset; call reset first")
        self._turns += 1
        number = parse_action(action)
        reward, terminated = INVALID_ACTION_REWARD, False
        if number is not None:
            _, gain, terminated, _, _ = self._lake.step(number)
            reward = float(gain)
        truncated = not terminated and self._turns >= self._settings.max_turns
        return self._seen(), reward, terminated, truncated, {"success": reward > 0}

    def _seen(self) -> Observation:
        if self._settings.visual:
            return self._frame()
        return "{},{}".format(*self._place()) if self._settings.brief else self._grid()

    def _frame(self, text: str = "") -> Observation:
        image = Image.of(self._lake.render())
        return [user(text, image) if text else user(image)]

    def _shape(self) -> tuple[int, int]:
        """Return columns and rows of the map."""
        return len(self._map[0]), len(self._map)

    def _place(self) -> tuple[int, int]:
        return divmod(int(self._lake.s), len(self._map[0]))

    def _grid(self) -> str:
        row, column = self._place()
        line = self._map[row]
        here = line[:column] + "P" + line[column + 1 :]
        return "\n".join([*self._map[:row], here, *self._map[row + 1 :]])


@dataclass(frozen=True)
class FrozenLake(Domain):
    """Walk from the top left to G without falling into H.

    Raises SettingsError if the size has no fixed map, or `max_turns` do not reach the goal.
    """

    name: ClassVar[str] = "frozenlake"
    environment: ClassVar[type[Environment]] = FrozenLakeEnvironment

    size: int = 4
    """Rows and columns: 4 or 8 for Gymnasium's fixed maps, 2 or more for random ones."""
    max_turns: int = 10
    """Turns after which an episode is truncated; at least 2 (size - 1), the shortest way."""
    brief: bool = False
    """Show the grid once; later turns tell only the player's row and column, such as "1,2"."""
    visual: bool = False
    """Show the frames that Gymnasium draws instead of text, which takes a policy that sees."""
    tile_pixels: int = 16
    """Height and width of a tile in a frame [pixels]."""
    slippery: bool = False
    """Whether the player moves at a right angle to the action two times in three."""
    random_maps: bool = False
    """A map of its own for every task (all can be solved) instead of the fixed one."""
    instructions: str = ""
    """Put before the first observation; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        if not self.random_maps and self.size not in _FIXED_SIZES:
            raise SettingsError(
                f"FrozenLake: no fixed map of size {self.size}; "
                "take 4 or 8, or set random_maps=True"
            )
        if self.visual and self.brief:
            raise SettingsError("FrozenLake: brief is for text; set either brief or visual")
        if not 4 <= self.tile_pixels <= 64:
            raise SettingsError(
                f"FrozenLake: tile_pixels is {self.tile_pixels}; it must be from 4 to 64"
            )
        if self.size < 2:
            raise SettingsError(f"FrozenLake: size is {self.size}; it must be 2 or more")
        if self.max_turns < 2 * (self.size - 1):
            raise SettingsError(
                f"FrozenLake: max_turns is {self.max_turns}, but the goal is "
                f"{2 * (self.size - 1)} moves away; allow at least as many"
            )

    @property
    def shows_images(self) -> bool:  # type: ignore[override]  # a setting decides it
        """Whether observations are frames."""
        return self.visual

    def make(self) -> FrozenLakeEnvironment:
        return FrozenLakeEnvironment(self)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The fixed map over and over (once for evaluation), or random ones (64 for evaluation).

        Random maps of the two splits are sampled independently, so that small ones may coincide.
        """
        if not self.random_maps:
            return repeat(self._fixed()) if split is Split.TRAIN else iter((self._fixed(),))
        random = Random(f"{split.value}/{seed}")
        count = repeat(None) if split is Split.TRAIN else repeat(None, _EVALUATION_MAPS)
        return (self._random(random.randrange(_MAP_SEEDS)) for _ in count)

    def example_action(self, task: Task, random: Random) -> str:
        return random.choice(ACTIONS)

    def _fixed(self) -> Task:
        from gymnasium.envs.toy_text.frozen_lake import MAPS

        name = f"{self.size}x{self.size}"
        return Task(f"{self.name}/{name}", self.name, json.dumps({"map": MAPS[name]}))

    def _random(self, map_seed: int) -> Task:
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        rows = generate_random_map(size=self.size, seed=map_seed)
        name = f"{self.name}/{self.size}x{self.size}/{map_seed}"
        return Task(name, self.name, json.dumps({"map": rows}))
