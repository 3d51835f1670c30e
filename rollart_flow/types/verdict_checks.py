"""Checks of verdicts and of the further things that an environment reports of an attempt.

The invariant: a checked report is in plain Python types, finite and of bounded size, so that it can
be stored; any other value raises a TypeError or ValueError that names it in one line.
"""

import math
from collections.abc import Mapping, Sequence

from rollart_flow.text import one_line, storable
from rollart_flow.types.scalars import python_scalar
from rollart_flow.types.verdicts import AttemptReport, Verdict, VerdictKind

REPORTED = frozenset({"verdicts", "verifier", "diff", "suspicions"})
"""Keys of `info` that say how an attempt was judged."""
DIFF_CHARACTERS = 4 << 20
"""Maximum length of a diff. A longer one is refused: a cut one could not be judged again."""
MOST_VERDICTS = 10_000
"""Maximum number of verdicts on one attempt."""
MOST_SUSPICIONS = 100
"""Number of suspicions that are stored of one attempt, the first ones."""
_KEY = 500
_MESSAGE = 1_000
_DIGEST = 200


def checked_report(info: Mapping[str, object]) -> AttemptReport | None:
    """Return what the `info` of a step reports of the attempt; None if it reports nothing.

    Raises:
        TypeError: a value has a wrong type.
        ValueError: a value is too large, not finite, or of an unknown kind.
    """
    if REPORTED.isdisjoint(info):
        return None
    verdicts, diff = info.get("verdicts"), info.get("diff")
    verifier, suspicions = info.get("verifier"), info.get("suspicions")
    return AttemptReport(
        verdicts=None if verdicts is None else checked_verdicts(verdicts, "info['verdicts']"),
        verifier=None if verifier is None else one_line(_text(verifier, "verifier"), _DIGEST),
        diff=None if diff is None else _diff(diff),
        suspicions=None if suspicions is None else _suspicions(suspicions),
    )


def checked_verdicts(value: object, what: str) -> tuple[Verdict, ...]:
    """Return verdicts, given as such or as mappings of their fields; of equal keys the last one.

    Args:
        value: a list or tuple.
        what: name of the value, for the error.

    Raises: see `checked_report`.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(f"{what} is {_name(value)}; it must be a list of verdicts")
    if len(value) > MOST_VERDICTS:
        raise ValueError(f"{what} has {len(value)} verdicts; at most {MOST_VERDICTS} are stored")
    verdicts = (_verdict(each, f"{what}[{index}]") for index, each in enumerate(value))
    return tuple({(verdict.kind, verdict.key): verdict for verdict in verdicts}.values())


def _verdict(value: object, what: str) -> Verdict:
    if isinstance(value, Verdict):
        value = value.as_json()
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is {_name(value)}; it must be a mapping of a verdict's fields")
    try:
        verdict = Verdict.from_json(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {one_line(error)}") from error
    if not isinstance(verdict.key, str):
        raise TypeError(f"{what} has {_name(verdict.key)} as key; it must be a text")
    passed = python_scalar(verdict.passed)
    if not isinstance(passed, bool | None):
        raise TypeError(f"{what} has {_name(passed)} as passed; it must be a bool or None")
    message = verdict.message
    return Verdict(
        key=one_line(verdict.key, _KEY),
        kind=VerdictKind(verdict.kind),
        passed=passed,
        value=_finite(verdict.value, f"{what}, value"),
        seconds=_finite(verdict.seconds, f"{what}, seconds"),
        message=None if message is None else one_line(message, _MESSAGE),
    )


def _finite(value: object, what: str) -> float | None:
    number = python_scalar(value)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{what}: {_name(number)} given; it must be a number or None")
    try:
        given = float(number)
    except OverflowError:
        given = math.inf
    if not math.isfinite(given):
        raise ValueError(f"{what}: {given} given; it must be finite")
    return given


def _diff(value: object) -> str:
    text = _text(value, "diff")
    if len(text) > DIFF_CHARACTERS:
        raise ValueError(
            f"info['diff'] has {len(text)} characters; at most {DIFF_CHARACTERS} are stored"
        )
    return storable(text)


def _suspicions(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"info['suspicions'] is {_name(value)}; it must be a list of texts")
    for each in value:
        if not isinstance(each, str):
            raise TypeError(f"info['suspicions'] has {_name(each)}; it must be a list of texts")
    lines = dict.fromkeys(one_line(each) for each in value[:MOST_SUSPICIONS])
    return tuple(lines)


def _text(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"info[{key!r}] is {_name(value)}; it must be a text")


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
