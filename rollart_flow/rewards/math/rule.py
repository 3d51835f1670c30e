"""The rule `math_equal`: the answer equals the expected expression, whatever its notation."""

import re
from dataclasses import KW_ONLY, dataclass

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards.base import Score
from rollart_flow.rewards.math.equal import are_equal
from rollart_flow.rewards.text import answer_of, check_inside, from_task, last_boxed
from rollart_flow.types import Trajectory
from rollart_flow.validation import check_number

_SAYS = re.compile(r"(?:answer|result)\s*(?:is|:|=)\s*:?\s*([^\n]+)", re.IGNORECASE)
_LINE = re.compile(r"####\s*([^\n]+)")


@dataclass(frozen=True, slots=True)
class MathEqual:
    r"""Reward 1 if the answer is mathematically the expected one, else 0: `math_equal(...)`.

    Both may be plain text or LaTeX: numbers, fractions, roots, percentages, units, polynomials and
    other expressions, equations, sets, intervals, tuples, matrices, or words. What counts of a text
    is the content of its last `\boxed{...}`, or else what follows the last `####` or "answer is",
    or else all of it. Roots and expressions are proved equal by sympy; what cannot be proved within
    `limit_s` is not equal. No text is ever evaluated.

    Raises:
        SettingsError: `expected` is empty, or `inside` or `limit_s` is not valid.
    """

    expected: str | float | None = None
    """The expected answer; None: the value of `key` of the payload, or any of its values if it is a
    list."""
    _: KW_ONLY
    key: str = "answer"
    """Key of the task's payload."""
    inside: str = ""
    """Part of the last action that is the answer, as in `exact`."""
    limit_s: float = 2.0
    """Time of one proof [s]."""

    def __post_init__(self) -> None:
        if self.expected is not None and not str(self.expected).strip():
            raise SettingsError("math_equal: expected is empty; give an expression")
        check_number("math_equal.limit_s", self.limit_s, low=0, open_low=True)
        check_inside("math_equal", self.inside)

    def __call__(self, trajectory: Trajectory) -> Score:
        answer = answer_of(trajectory, self.inside)
        found: object = self.expected
        if found is None:
            found = from_task(trajectory, self.key, "math_equal")
        wanted = found if isinstance(found, list) else [found]
        texts = [_text(value) for value in wanted]
        if not texts or not all(texts):
            raise RewardFailedError(
                f"math_equal: {self.key!r} of task {trajectory.task_id!r} is {found!r}; "
                "it must be a text or a number"
            )
        if answer is None:
            return 0.0
        given = final_answer(answer)
        return float(any(are_equal(given, final_answer(it), limit_s=self.limit_s) for it in texts))


def _text(value: object) -> str:
    """Return an expected value as text; empty if it is none."""
    known = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value).strip() if known else ""


def final_answer(text: str) -> str:
    """Return the part of a text that states its answer."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    for pattern in (_LINE, _SAYS):
        if found := pattern.findall(text):
            return str(found[-1])
    return text


math_equal = MathEqual
"""The rule as pipelines name it."""
