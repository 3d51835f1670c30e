"""Rule-based rewards: exact text, a number within a tolerance, or a pattern.

Each rule gives 1 if the last action is right and 0 otherwise. The expected value is an argument, or
the value of `key` in the task's payload; the payload must then have it in addition to the
environment's own keys. Invariant: a rule is plain and holds settings only, so that it runs in a
process of its own: a pattern with endless backtracking stops at the reward's timeout and blocks no
other call.
"""

import math
import re
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards.base import Score
from rollart_flow.rewards.text import (
    Normal,
    answer_of,
    check_inside,
    from_task,
    is_close,
    last_number,
)
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """Settings of an exact check; see `exact`."""

    expected: tuple[str, ...] | None = None
    key: str = "answer"
    inside: str = ""
    ignoring: Normal = field(default_factory=Normal)

    def __post_init__(self) -> None:
        if self.expected == ():
            raise SettingsError("exact: expected is empty; give at least one text")
        check_inside("exact", self.inside)

    def __call__(self, trajectory: Trajectory) -> Score:
        answer = answer_of(trajectory, self.inside)
        given = self.expected or from_task(trajectory, self.key, "exact")
        expected = given if isinstance(given, list | tuple) else (given,)
        right = {self.ignoring(str(text)) for text in expected}
        return float(answer is not None and self.ignoring(answer) in right)


@dataclass(frozen=True, slots=True)
class Numeric:
    r"""Reward 1 if the last number of the answer is the expected one, else 0: `numeric(...)`.

    Numbers are compared exactly, as fractions; "1,234.50", "-3/4" and "\frac{3}{4}" are numbers.
    Text after a number, such as a percent sign, is ignored.

    Raises:
        SettingsError: a tolerance is negative, or `expected` or `inside` is not valid.
    """

    expected: float | str | None = None
    """A number, or a text whose last number is used; None: the value of `key` of the payload."""
    _: KW_ONLY
    relative: float = 0.0
    """Largest accepted difference, as a fraction of the expected number."""
    absolute: float = 0.0
    """Largest accepted difference; the larger of both tolerances applies."""
    key: str = "answer"
    """Key of the task's payload."""
    inside: str = ""
    """Part of the last action that is the answer, as in `exact`."""

    def __post_init__(self) -> None:
        for name in ("relative", "absolute"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise SettingsError(f"numeric: {name} is {value}; it must be a number from 0")
        if self.expected is not None and _number(self.expected) is None:
            raise SettingsError(f"numeric: expected is {self.expected!r}, which holds no number")
        check_inside("numeric", self.inside)

    def __call__(self, trajectory: Trajectory) -> Score:
        value = self.expected
        wanted = from_task(trajectory, self.key, "numeric") if value is None else value
        expected = _number(wanted)
        if expected is None:
            raise RewardFailedError(
                f"numeric: {self.key!r} of task {trajectory.task_id!r} is {wanted!r}; "
                "it must be a finite number or a text with one"
            )
        answer = answer_of(trajectory, self.inside)
        given = None if answer is None else last_number(answer)
        return float(given is not None and is_close(given, expected, self.relative, self.absolute))


@dataclass(frozen=True, slots=True)
class Regex:
    """Reward 1 if the answer matches a pattern of Python's `re`, else 0: `regex(...)`.

    Raises:
        SettingsError: the pattern or `inside` is not valid.
    """

    pattern: str | None = None
    """Pattern, which may have flags such as "(?i)yes"; None: the value of `key` of the payload."""
    _: KW_ONLY
    full: bool = False
    """Whether the whole answer must match, not only a part."""
    key: str = "pattern"
    """Key of the task's payload."""
    inside: str = ""
    """Part of the last action that is the answer, as in `exact`."""

    def __post_init__(self) -> None:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise SettingsError(f"regex: {self.pattern!r} is no pattern: {error}") from error
        check_inside("regex", self.inside)

    def __call__(self, trajectory: Trajectory) -> Score:
        answer = answer_of(trajectory, self.inside)
        given = self.pattern
        pattern = str(from_task(trajectory, self.key, "regex")) if given is None else given
        if answer is None:
            return 0.0
        matcher = re.compile(pattern)
        found = matcher.fullmatch(answer) if self.full else matcher.search(answer)
        return float(found is not None)


def exact(
    *expected: str,
    key: str = "answer",
    inside: str = "",
    case: bool = False,
    space: bool = False,
    form: bool = False,
) -> ExactMatch:
    r"""Reward 1 if the answer is the expected text, else 0.

    Args:
        expected: texts that are right; if none are given, the value of `key` of the task's payload,
            or any of its values if it is a list.
        key: key of the payload.
        inside: part of the last action that is the answer. Empty: the whole action; `\boxed`: the
            content of its last `\boxed{...}`; else a tag's name: the content of its last
            `<name>...</name>`.
        case: whether case matters.
        space: whether whitespace around the text, and its amount inside the text, matters.
        form: whether the Unicode form of a character matters (otherwise NFKC is applied).

    Raises:
        SettingsError: `inside` is not valid.
    """
    return ExactMatch(expected or None, key, inside, Normal(not case, not space, not form))


numeric, regex = Numeric, Regex
"""The rules as pipelines name them."""


def _number(value: object) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return last_number(value)
    return Fraction(str(value)) if math.isfinite(value) else None
