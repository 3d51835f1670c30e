"""Moves in the games of GEM: some that win, found by looking behind the board, and examples.

Each function takes a game that was just reset, and reads the attributes of gem-llm 0.1.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import deepcopy
from random import Random
from string import ascii_lowercase
from typing import Any, TypeVar

from rollart_flow.envs.sokoban import MOVES, SokobanBoard

S = TypeVar("S", bound=Hashable)

_MOST_STATES = 200_000


def gold_moves(game: Any) -> list[str] | None:
    """Return moves that win a game; None if none are known or there are too many boards."""
    found = _GOLD.get(type(game).__name__)
    moves = found(game) if found is not None else None
    return None if moves is None else [f"\\boxed{{{move}}}" for move in moves]


def _hanoi(disks: int, start: str, spare: str, end: str) -> Iterator[str]:
    if disks:
        yield from _hanoi(disks - 1, start, end, spare)
        yield f"{start} {end}"
        yield from _hanoi(disks - 1, spare, start, end)


def _sudoku(game: Any) -> Iterator[str]:
    for r, row in enumerate(game.board):
        for c, number in enumerate(row):
            if number == 0:
                yield f"{r + 1} {c + 1} {game.full_grid[r][c]}"


def _crosswords(game: Any) -> Iterator[str]:
    for r, row in enumerate(game.board):
        for c, sign in enumerate(row):
            if sign == "_":
                yield f"{r} {c} {game.solution[r][c]}"


def _word_search(game: Any) -> Iterator[str]:
    for word, (row, column, direction) in game.placed_words.items():
        more = len(word) - 1
        end = (row, column + more) if direction == "across" else (row + more, column)
        yield f"{row} {column} {end[0]} {end[1]}"


def _minesweeper(game: Any) -> list[str]:
    """Open a corner, flag all mines, which GEM asks for, and open the rest."""
    game = deepcopy(game)
    moves = ["reveal 0 0"]
    game.step("\\boxed{reveal 0 0}")
    cells = [(r, c) for r in range(game.rows) for c in range(game.cols)]
    moves += [f"flag {r} {c}" for r, c in cells if game.grid[r][c] == -1]
    for r, c in cells:
        if game.grid[r][c] != -1 and not game.revealed[r][c]:
            game.step(f"\\boxed{{reveal {r} {c}}}")
            moves.append(f"reveal {r} {c}")
    return moves


def _shortest(
    start: S, ends: Callable[[S], bool], after: Callable[[S], Iterable[tuple[str, S]]]
) -> list[str] | None:
    """Return the shortest way to an end; None if it has too many states."""
    ways: dict[S, tuple[S, str] | None] = {start: None}
    left = deque([start])
    while left and len(ways) < _MOST_STATES:
        here = left.popleft()
        if ends(here):
            moves: list[str] = []
            while (back := ways[here]) is not None:
                here, move = back
                moves.append(move)
            return moves[::-1]
        for move, there in after(here):
            if there not in ways:
                ways[there] = here, move
                left.append(there)
    return None


def _sokoban(game: Any) -> list[str] | None:
    signs = {(r, c): int(sign) for (r, c), sign in _cells(game.room_state)}
    fixed = {(r, c): int(sign) for (r, c), sign in _cells(game.room_fixed)}

    def having(cells: dict[tuple[int, int], int], *kinds: int) -> frozenset[tuple[int, int]]:
        return frozenset(cell for cell, kind in cells.items() if kind in kinds)

    (player,) = having(signs, 5)
    start = SokobanBoard(
        having(signs, 1, 2, 3, 4, 5), having(fixed, 2), having(signs, 3, 4), player
    )

    def after(board: SokobanBoard) -> Iterator[tuple[str, SokobanBoard]]:
        return ((move, there) for move in MOVES if (there := board.moved(move)) is not None)

    return _shortest(start, lambda board: board.placed == len(board.boxes), after)


def _cells(room: Any) -> Iterator[tuple[tuple[int, int], Any]]:
    return (((r, c), sign) for r, row in enumerate(room) for c, sign in enumerate(row))


def _fifteen(game: Any) -> list[str] | None:
    size = game.num_rows
    solved = (*range(1, size * size), 0)
    start = tuple(tile or 0 for row in game.board for tile in row)

    def after(tiles: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        row, column = divmod(tiles.index(0), size)
        for move, (down, right) in MOVES.items():
            # A move pushes a tile into the gap: "up" the one below it.
            r, c = row - down, column - right
            if 0 <= r < size and 0 <= c < size:
                there = list(tiles)
                gap, tile = row * size + column, r * size + c
                there[gap], there[tile] = there[tile], 0
                yield move, tuple(there)

    return _shortest(start, lambda tiles: tiles == solved, after)


_GOLD: dict[str, Callable[[Any], Iterable[str] | None]] = {
    "GuessTheNumberEnv": lambda game: [str(game.game_number)],
    "MastermindEnv": lambda game: [" ".join(map(str, game.game_code))],
    "WordleEnv": lambda game: [game.secret_word],
    "HangmanEnv": lambda game: [game.secret_word],
    "TowerofHanoiEnv": lambda game: _hanoi(game.num_disks, "A", "B", "C"),
    "SudokuEnv": _sudoku,
    "CrosswordsEnv": _crosswords,
    "WordSearchEnv": _word_search,
    "MinesweeperEnv": _minesweeper,
    "FifteenPuzzleEnv": _fifteen,
    "SokobanEnv": _sokoban,
}


def _numbers(random: Random, *below: int) -> str:
    return " ".join(str(random.randrange(each)) for each in below)


EXAMPLES: dict[str, Callable[[Random], str]] = {
    "GuessTheNumber": lambda random: str(random.randint(1, 10)),
    "Mastermind": lambda random: " ".join(map(str, random.sample(range(1, 7), 2))),
    "Minesweeper": lambda random: f"reveal {_numbers(random, 5, 5)}",
    "Wordle": lambda random: "".join(random.choices(ascii_lowercase, k=3)),
    "Hangman": lambda random: random.choice(ascii_lowercase),
    "FifteenPuzzle": lambda random: random.choice(tuple(MOVES)),
    "Game2048": lambda random: random.choice(tuple(MOVES)),
    "Sokoban": lambda random: random.choice(tuple(MOVES)),
    "Sudoku": lambda random: " ".join(str(random.randint(1, 4)) for _ in range(3)),
    "TowerofHanoi": lambda random: " ".join(random.sample("ABC", 2)),
    "Crosswords": lambda random: f"{_numbers(random, 9, 9)} {random.choice(ascii_lowercase)}",
    "WordSearch": lambda random: _numbers(random, 9, 9, 9, 9),
}
"""A well-formed move of each game, at the easy size."""
