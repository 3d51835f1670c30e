"""Problems of mathematics with their answers: made from a number, or read from a table.

Invariant: a problem is the same for the same number, or row, on every machine.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from rollart_flow.envs.numbered import held_out_by_hash
from rollart_flow.envs.reasoning import ReasoningQuestion
from rollart_flow.errors import EnvironmentFailedError, SettingsError

REASONING = "reasoning_gym/"
"""Prefix of the name of a generator of reasoning-gym."""
TABLES = (".jsonl", ".parquet")

_NAMES = ("Ada", "Ben", "Chi", "Dina", "Emil", "Fay", "Gus", "Hana")
_THINGS = ("apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "tickets")


class MathProblem(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


def _expression(random: Random) -> MathProblem:
    """Four to seven numbers of up to four digits, with brackets."""
    text, value = _term(random)
    for _ in range(random.randint(3, 6)):
        sign, (more, by) = random.choice("+-*"), _term(random)
        value = {"+": value + by, "-": value - by, "*": value * by}[sign]
        text = f"({text} {sign} {more})"
    return MathProblem(f"What is {text.removeprefix('(').removesuffix(')')}?", str(value))


def _term(random: Random) -> tuple[str, int]:
    value = random.randint(2, 10 ** random.randint(1, 4) - 1)
    return str(value), value


def _shares(random: Random, name: str, other: str, things: str) -> MathProblem:
    friends, each, rest = random.randint(3, 12), random.randint(4, 40), random.randint(1, 9)
    told = (
        f"{name} gives {each} {things} to each of {friends} friends and keeps {rest}. "
        f"{other} has twice as many {things} as {name} had at first. How many {things} has {other}?"
    )
    return MathProblem(told, str(2 * (friends * each + rest)))


def _prices(random: Random, name: str, other: str, things: str) -> MathProblem:
    price, count, off = (
        random.randint(2, 60),
        random.randint(3, 25),
        random.choice((10, 20, 25, 50)),
    )
    told = (
        f"{name} buys {200 * count} {things} for {price} cents each, and gets {off}% off. "
        f"{other} pays for half of them. How many cents does {name} pay?"
    )
    return MathProblem(told, str(count * price * (100 - off)))


def _days(random: Random, name: str, other: str, things: str) -> MathProblem:
    first, more, days = random.randint(1, 20), random.randint(1, 9), random.randint(5, 30)
    told = (
        f"{name} finds {first} {things} on the first day, and on each day {more} more than on the "
        f"day before. {other} finds {first} {things} every day. How many {things} do both have "
        f"after {days} days?"
    )
    return MathProblem(told, str(2 * first * days + more * days * (days - 1) // 2))


def _roads(random: Random, name: str, other: str, things: str) -> MathProblem:
    fast, slow, hours = random.randint(11, 30), random.randint(4, 10), random.randint(2, 12)
    told = (
        f"{name} and {other} leave a town on one road in the same direction, at "
        f"{fast} and {slow} km an hour. How many km apart are they after {hours} hours?"
    )
    return MathProblem(told, str((fast - slow) * hours))


def _story(random: Random) -> MathProblem:
    """One of four stories, of two to four operations."""
    name, other = random.sample(_NAMES, 2)
    return random.choice((_shares, _prices, _days, _roads))(
        random, name, other, random.choice(_THINGS)
    )


GENERATED: Mapping[str, Callable[[Random], MathProblem]] = {
    "expression": _expression,
    "story": _story,
}
"""Generators of problems by name."""


def generated_problem(kind: str, number: int) -> MathProblem:
    """Return the problem of a number.

    Raises:
        EnvironmentFailedError: a generator of reasoning-gym is unknown, or tells no answer.
        MissingExtraError: reasoning-gym is not installed.
    """
    if kind in GENERATED:
        return GENERATED[kind](Random(f"{kind}/{number}"))
    question = ReasoningQuestion(kind.removeprefix(REASONING), number, None)
    if question.answer is None:
        raise EnvironmentFailedError(f"{kind} tells no right answers; take another generator")
    return MathProblem(question.text, question.answer)


@lru_cache(maxsize=4)
def table_problems(
    path: str, question: str, answer: str
) -> tuple[tuple[MathProblem, ...], tuple[MathProblem, ...]]:
    """Return the problems of a table that are trained on, and those held out by their hash.

    Args:
        path: a JSONL or Parquet file.
        question: column of the questions.
        answer: column of the answers.

    Raises:
        SettingsError: the file cannot be read, or has no such column or no row.
    """
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        read = pl.scan_parquet if Path(path).suffix == ".parquet" else pl.scan_ndjson
        rows = read(path).select(question, answer).collect()
    except (OSError, PolarsError) as error:
        raise SettingsError(f"problems={path!r} cannot be read: {error}") from error
    split: tuple[list[MathProblem], list[MathProblem]] = ([], [])
    for asked, told in rows.iter_rows():
        split[held_out_by_hash(str(asked))].append(MathProblem(str(asked), str(told)))
    if not split[0]:
        raise SettingsError(f"problems={path!r} has no row to train on")
    return tuple(split[0]), tuple(split[1])
