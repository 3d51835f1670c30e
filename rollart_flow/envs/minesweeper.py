"""Minesweeper: open every cell without a mine; many turns, a row and a column an action.

The observation is the board with rows and columns numbered: `.` is closed, a digit is the number of
mines around an open cell, `*` a mine that was opened. The first cells are open.

Invariant: every board can be solved without a guess, and no board of training is held out.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import ClassVar

from rollart_flow.envs.base import Environment, Info
from rollart_flow.envs.numbered import HELD_OUT_FROM, NumberedDomain, held_out_by_hash
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Task

INVALID_CELL_REWARD = -0.1

_NUMBER = re.compile(r"\d+")
_TRIES = 20_000

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MineField:
    """The mines of a board."""

    size: int
    mines: frozenset[Cell]

    def around(self, cell: Cell) -> Iterator[Cell]:
        """Yield the cells beside a cell."""
        for row in range(max(0, cell[0] - 1), min(self.size, cell[0] + 2)):
            for column in range(max(0, cell[1] - 1), min(self.size, cell[1] + 2)):
                if (row, column) != cell:
                    yield row, column

    def number(self, cell: Cell) -> int:
        """Return how many mines are beside a cell."""
        return sum(each in self.mines for each in self.around(cell))

    @property
    def safe(self) -> frozenset[Cell]:
        """Cells without a mine."""
        cells = ((r, c) for r in range(self.size) for c in range(self.size))
        return frozenset(cells) - self.mines

    def opened(self, cell: Cell, open_cells: Iterable[Cell]) -> frozenset[Cell]:
        """Return the open cells after one more, and after all beside one without a number."""
        found = {*open_cells, cell}
        left = [cell]
        while left:
            if self.number(here := left.pop()) == 0:
                new = set(self.around(here)) - found
                found |= new
                left += new
        return frozenset(found)


def solved_by_logic(field: MineField, open_cells: frozenset[Cell]) -> list[Cell] | None:
    """Return cells that can be opened in this order without a guess; None if that is not enough.

    What is known of a set of cells is how many mines it has. A set within another one tells of the
    rest.
    """
    order: list[Cell] = []
    mines: set[Cell] = set()
    while open_cells != field.safe:
        known = {
            frozenset(rest): field.number(cell) - len(mines.intersection(near))
            for cell in open_cells
            if (rest := set(near := set(field.around(cell))) - open_cells - mines)
        }
        for one, other in permutations(tuple(known), 2):
            if one < other:
                known[other - one] = known[other] - known[one]
        mines_before = len(mines)
        mines.update(*(cells for cells, count in known.items() if count == len(cells)))
        free = sorted({*()}.union(*(cells for cells, count in known.items() if count == 0)))
        if not free and len(mines) == mines_before:
            return None
        for cell in free:
            if cell not in open_cells:
                order.append(cell)
                open_cells = field.opened(cell, open_cells)
    return order


class MinesweeperEnvironment(Environment):
    """A board of Minesweeper. `info["success"]`: whether all cells without a mine are open."""

    inline = True  # a step takes some 20 us
    version = "minesweeper/1"

    def __init__(self, settings: "Minesweeper") -> None:
        self._settings = settings
        self._field: MineField | None = None
        self._open: frozenset[Cell] = frozenset()
        self._first = 0
        self._turns = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Show the board `{"size": 5, "mines": [[0, 1], ...], "start": [2, 3]}`; nothing is
        random."""
        payload = json.loads(task)
        field = _field_of(payload)
        self._open = field.opened(tuple(payload["start"]), ())
        self._field, self._first, self._turns = field, len(self._open), 0
        return self._settings.instructions + self._shown(field), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Open the cell that the last two numbers name. Truncated after `max_turns` turns."""
        field = self._field
        if field is None:
            raise EnvironmentFailedError("minesweeper: step before reset; call reset first")
        self._turns += 1
        numbers = [int(n) for n in _NUMBER.findall(action)[-2:]]
        cell = (numbers[0], numbers[1]) if len(numbers) == 2 else (-1, -1)
        lost, solved = cell in field.mines, False
        if lost:
            self._open |= {cell}
            reward = 0.0
        elif cell not in field.safe or cell in self._open:
            reward = INVALID_CELL_REWARD
        else:
            before = len(self._open)
            self._open = field.opened(cell, self._open)
            solved = self._open == field.safe
            share = self._settings.cell_reward / (len(field.safe) - self._first)
            reward = share * (len(self._open) - before) + (1 - self._settings.cell_reward) * solved
        ended = lost or solved
        truncated = not ended and self._turns >= self._settings.max_turns
        return self._shown(field), reward, ended, truncated, {"success": solved}

    def _shown(self, field: MineField) -> str:
        def sign(cell: Cell) -> str:
            if cell not in self._open:
                return "."
            return "*" if cell in field.mines else str(field.number(cell))

        columns = range(field.size)
        rows = (f"{r} " + "".join(sign((r, c)) for c in columns) for r in columns)
        return "\n".join(["  " + "".join(map(str, columns)), *rows])


@dataclass(frozen=True)
class Minesweeper(NumberedDomain):
    """Open every cell without a mine.

    Raises SettingsError if a setting is out of range.
    """

    name: ClassVar[str] = "minesweeper"
    environment: ClassVar[type[Environment]] = MinesweeperEnvironment

    size: int = 5
    """Rows and columns, from 3 to 9."""
    mines: int = 4
    """Number of mines, from 1 to a fifth of the cells."""
    max_turns: int = 25
    """Turns after which an episode is truncated; at least as many as there are cells without a
    mine, which always suffice."""
    cell_reward: float = 0.0
    """Share of the reward that is paid for cells as they open; the rest is paid at the end."""
    instructions: str = ""
    """Put before the first observation; a pretrained policy needs to be told what to do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.size**2 // 5
        if not 3 <= self.size <= 9 or not 1 <= self.mines <= most:
            raise SettingsError(
                f"Minesweeper: size={self.size}, mines={self.mines}; size must be from 3 to 9, and "
                f"mines from 1 to {max(1, most)} for it"
            )
        if self.max_turns < self.size**2 - self.mines or not 0.0 <= self.cell_reward <= 1.0:
            raise SettingsError(
                f"Minesweeper: max_turns={self.max_turns}, cell_reward={self.cell_reward}; "
                f"expected at least {self.size**2 - self.mines} turns and a share from 0 to 1"
            )

    def make(self) -> MinesweeperEnvironment:
        return MinesweeperEnvironment(self)

    def task(self, number: int) -> Task:
        """Return the board of a number."""
        random = Random(f"minesweeper/{self.size}/{self.mines}/{number}")
        cells = [(r, c) for r in range(self.size) for c in range(self.size)]
        for _ in range(_TRIES):
            start, *mines = random.sample(cells, self.mines + 1)
            field = MineField(self.size, frozenset(mines))
            opened = field.opened(start, ())
            if field.number(start) or opened == field.safe:
                continue
            held_out = held_out_by_hash(f"{sorted(mines)}{sorted(opened)}")
            if held_out is (number >= HELD_OUT_FROM) and solved_by_logic(field, opened) is not None:
                payload = {"size": self.size, "mines": sorted(mines), "start": start}
                task_id = f"{self.name}/{self.size}x{self.mines}/{number}"
                return Task(task_id, self.name, json.dumps(payload))
        raise SettingsError(f"Minesweeper: no board of these settings has number {number}")

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Return cells that logic opens one after the other."""
        payload = json.loads(task.payload)
        field = _field_of(payload)
        order = solved_by_logic(field, field.opened(tuple(payload["start"]), ()))
        if order is None:
            return {}
        gold = [f"{row} {column}" for row, column in order]
        return {"gold": gold, "noop": ["wait"] * self.max_turns}

    def example_action(self, task: Task, random: Random) -> str:
        return f"{random.randrange(self.size)} {random.randrange(self.size)}"


def _field_of(payload: Mapping[str, object]) -> MineField:
    mines = payload["mines"]
    assert isinstance(mines, list)
    return MineField(int(str(payload["size"])), frozenset((row, column) for row, column in mines))
