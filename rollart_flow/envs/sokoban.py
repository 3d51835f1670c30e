"""Sokoban: push every box onto a goal; many turns, one word an action.

The observation is the level in the notation that collections of levels use: `#` wall, `_` floor,
`.` goal, `$` box, `*` box on a goal, `@` player, `+` player on a goal. A level is made by pulling
boxes away from the goals, so that the way back solves it.

Invariant: every level can be solved within `max_turns`, and no level of training is held out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.numbered import HELD_OUT_FROM, NumberedDomain, held_out_by_hash
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Task

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
INVALID_MOVE_REWARD = -0.1

_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_WORD = re.compile(r"\b(?:" + "|".join(MOVES) + r")\b", re.IGNORECASE)
_SIGNS = "#_.$*@+"
_TRIES = 1000

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SokobanBoard:
    """A state of a level."""

    floor: frozenset[Cell]
    """Cells that are no wall."""
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def placed(self) -> int:
        """Number of boxes on goals."""
        return len(self.boxes & self.goals)

    def moved(self, move: str) -> "SokobanBoard | None":
        """Return the state after a move; None if a wall or a box is in the way."""
        down, right = MOVES[move]
        to = (self.player[0] + down, self.player[1] + right)
        beyond = (to[0] + down, to[1] + right)
        if to not in self.floor:
            return None
        if to not in self.boxes:
            return SokobanBoard(self.floor, self.goals, self.boxes, to)
        if beyond not in self.floor or beyond in self.boxes:
            return None
        return SokobanBoard(self.floor, self.goals, self.boxes - {to} | {beyond}, to)

    def pulled(self, move: str, pull: bool) -> "SokobanBoard | None":
        """Return a state from which the opposite move leads here; None if there is none."""
        down, right = MOVES[move]
        to = (self.player[0] + down, self.player[1] + right)
        behind = (self.player[0] - down, self.player[1] - right)
        if to not in self.floor or to in self.boxes:
            return None
        boxes = self.boxes
        if pull and behind in boxes:
            boxes = boxes - {behind} | {self.player}
        return SokobanBoard(self.floor, self.goals, boxes, to)

    def sign(self, cell: Cell) -> str:
        if cell not in self.floor:
            return "#"
        kind = 2 if cell == self.player else int(cell in self.boxes)
        return ("_$@", ".*+")[cell in self.goals][kind]

    def rows(self, height: int, width: int) -> list[str]:
        """Return the signs of all cells."""
        return ["".join(self.sign((r, c)) for c in range(width)) for r in range(height)]


def parse_board(rows: Sequence[str]) -> SokobanBoard:
    """Return the state that rows of signs show.

    Raises:
        EnvironmentFailedError: a sign is unknown, or there is not one player, or not a goal for
            every box.
    """
    cells = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}

    def having(signs: str) -> frozenset[Cell]:
        return frozenset(cell for cell, sign in cells.items() if sign in signs)

    players, boxes, goals = having("@+"), having("$*"), having(".*+")
    known = set(cells.values()) <= set(_SIGNS)
    if not known or len(players) != 1 or not boxes or len(boxes) != len(goals):
        raise EnvironmentFailedError(
            f"sokoban: {rows!r} is no level of the signs {_SIGNS} with one player and a goal for "
            "every box"
        )
    (player,) = players
    return SokobanBoard(having("_.$*@+"), goals, boxes, player)


class SokobanEnvironment(Environment):
    """A level of Sokoban. `info["success"]`: whether every box is on a goal."""

    inline = True  # a step takes some 10 us
    version = "sokoban/1"

    def __init__(self, settings: "Sokoban") -> None:
        self._settings = settings
        self._board: SokobanBoard | None = None
        self._shape = (0, 0)
        self._turns = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Show the task's level: `{"map": ["####", ...]}`. Nothing is random."""
        rows: list[str] = json.loads(task)["map"]
        self._board, self._turns = parse_board(rows), 0
        self._shape = len(rows), len(rows[0])
        return self._settings.instructions + self._shown(self._board), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Move once. Truncated after `max_turns` turns, valid or not."""
        if self._board is None:
            raise EnvironmentFailedError("sokoban: step before reset; call reset first")
        self._turns += 1
        before = self._board
        words = _WORD.findall(action)
        after = before.moved(words[-1].lower()) if words else None
        board = self._board = after or before
        solved = board.placed == len(board.boxes)
        share = self._settings.box_reward / len(board.boxes)
        reward = share * (board.placed - before.placed) + (1.0 - self._settings.box_reward) * solved
        if after is None:
            reward = INVALID_MOVE_REWARD
        truncated = not solved and self._turns >= self._settings.max_turns
        return self._shown(board), reward, solved, truncated, {"success": solved}

    def _shown(self, board: SokobanBoard) -> str:
        return "\n".join(board.rows(*self._shape))


@dataclass(frozen=True)
class Sokoban(NumberedDomain):
    """Push every box onto a goal.

    Raises SettingsError if a setting is out of range, or leaves no room for a level.
    """

    name: ClassVar[str] = "sokoban"
    environment: ClassVar[type[Environment]] = SokobanEnvironment

    size: int = 6
    """Rows and columns with the walls around, from 5 to 12."""
    boxes: int = 2
    """Number of boxes, from 1 to (size - 2)**2 // 6, and at most 5."""
    max_turns: int = 20
    """Turns after which an episode is truncated; at least 4. Every level can be solved in them."""
    box_reward: float = 0.0
    """Share of the reward that is paid for boxes as they come onto goals, and taken back as they
    leave; the rest is paid for the solved level."""
    instructions: str = ""
    """Put before the first observation; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = min(5, (self.size - 2) ** 2 // 6)
        if not 5 <= self.size <= 12 or not 1 <= self.boxes <= most:
            raise SettingsError(
                f"Sokoban: size={self.size}, boxes={self.boxes}; size must be from 5 to 12, and "
                f"boxes from 1 to {max(1, most)} for it"
            )
        if self.max_turns < 4 or not 0.0 <= self.box_reward <= 1.0:
            raise SettingsError(
                f"Sokoban: max_turns={self.max_turns}, box_reward={self.box_reward}; expected at "
                "least 4 turns and a share from 0 to 1"
            )

    def make(self) -> SokobanEnvironment:
        return SokobanEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the level of a number."""
        rows, _ = self._level(number)
        payload = json.dumps({"map": rows, "number": number})
        return Task(f"{self.name}/{self.size}x{self.boxes}/{number}", self.name, payload)

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return the way that the level was made by, and moves that only go to and fro."""
        level = json.loads(task.payload)
        rows, moves = self._level(level["number"])
        if rows != level["map"]:  # another version, or other settings, made it
            return {}
        return {"gold": moves, "noop": ["wait"] * self.max_turns}

    def example_action(self, task: Task, random: Random) -> str:
        return random.choice(tuple(MOVES))

    def _level(self, number: int) -> tuple[list[str], list[str]]:
        """Return the rows of a level and moves that solve it."""
        random = Random(f"sokoban/{self.size}/{self.boxes}/{self.max_turns}/{number}")
        for _ in range(_TRIES):
            found = _made(random, self.size, self.boxes, self.max_turns)
            if found is None:
                continue
            rows = found[0].rows(self.size, self.size)
            if held_out_by_hash("".join(rows)) is (number >= HELD_OUT_FROM):
                return rows, found[1]
        raise SettingsError(f"Sokoban: no level of these settings has number {number}; raise size")


def _made(
    random: Random, size: int, boxes: int, moves: int
) -> tuple[SokobanBoard, list[str]] | None:
    """Return a level and a way that solves it; None if the walls leave no such level."""
    inner = [(r, c) for r in range(1, size - 1) for c in range(1, size - 1)]
    floor = frozenset(cell for cell in inner if random.random() > 0.15)
    if len(floor) < boxes + 3:
        return None
    *goals, player = random.sample(sorted(floor), boxes + 1)
    ends = SokobanBoard(floor, frozenset(goals), frozenset(goals), player)
    ways: dict[SokobanBoard, list[str]] = {ends: []}
    board = ends
    for _ in range(4 * moves):
        move = random.choice(tuple(MOVES))
        before = board.pulled(move, random.random() < 0.8)
        if before is None:
            continue
        way = ways.setdefault(before, [_OPPOSITE[move], *ways[board]])
        if len(way) > moves:
            break
        board = before
    begins = [(each, way) for each, way in ways.items() if not each.placed and len(way) <= moves]
    return max(begins, key=lambda begin: len(begin[1]), default=None)
