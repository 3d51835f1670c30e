r"""Extraction of answers, expected values and numbers from text, and text normalization.

A number may have a sign, decimals, an exponent, thousands separated by commas or by narrow or
no-break spaces, or be a fraction, including LaTeX's `\frac`. A percent sign or a unit after it is
ignored; digits after a letter, as in "x2", are not a number.

Invariants: a trajectory without the requested text has no answer (None), which no rule accepts; a
task without the requested key is an error, since no trajectory of it could ever be right. Parsing a
number takes time linear in the text, and no number can exhaust memory: one with too many digits or
too large an exponent is not accepted.
"""

import json
import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.types import Trajectory
from rollart_flow.types.messages import Role

BOXED = r"\boxed"
r"""Value of `inside` that selects the content of the last `\boxed{...}`."""

_BRACE = re.compile(r"\\boxed\{|[{}]")
_TAG = re.compile(r"[A-Za-z][\w-]*")


def check_inside(rule: str, inside: str) -> None:
    """Raise SettingsError for a value that is neither empty, `BOXED` nor the name of a tag."""
    if inside and inside != BOXED and _TAG.fullmatch(inside) is None:
        raise SettingsError(
            rf"{rule}: inside is {inside!r}; give \boxed or the bare name of a tag, such as answer"
        )


def answer_of(trajectory: Trajectory, inside: str = "") -> str | None:
    """Return the text of the last action, or its last marked part; None if there is none.

    Of a conversation, the last action is that of the last turn in whatever branch, without its
    thinking and its calls. `inside` is empty for the whole action, `BOXED`, or the name of a tag:
    `<name>...</name>`.
    """
    if not trajectory.turns:
        return None
    action = _last_said(trajectory.messages) or trajectory.turns[-1].action
    if not inside:
        return action
    return last_boxed(action) if inside == BOXED else last_tagged(action, inside)


def marked(answer: str, inside: str = "") -> str:
    """Return an action from which `answer_of` takes this answer."""
    if not inside:
        return answer
    return f"{BOXED}{{{answer}}}" if inside == BOXED else f"<{inside}>{answer}</{inside}>"


def _last_said(messages: str | None) -> str:
    """Return the text of the last action of a stored conversation; empty if it has none."""
    forms = () if messages is None else reversed(json.loads(messages))
    said = next((form for form in forms if form["role"] == Role.ASSISTANT), None)
    content = "" if said is None else said.get("content")
    return content if isinstance(content, str) else ""


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, inner braces included, or None."""
    start, found = -1, None
    open_braces: list[int | None] = []
    for match in _BRACE.finditer(text):
        if match[0] != "}":
            open_braces.append(match.end() if len(match[0]) > 1 else None)
        elif open_braces and (opened := open_braces.pop()) is not None and opened > start:
            start, found = opened, text[opened : match.start()]
    return found


def last_tagged(text: str, tag: str) -> str | None:
    """Return the content of the last closed `<tag>...</tag>`, or None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if end < 0 or start < 0 else text[start + len(tag) + 2 : end]


def from_task(trajectory: Trajectory, key: str, rule: str) -> object:
    """Return the value of a key of the task's payload; RewardFailedError lists its keys."""
    payload = json.loads(trajectory.task)
    if isinstance(payload, dict) and key in payload:
        return payload[key]
    known = ", ".join(payload) if isinstance(payload, dict) and payload else "nothing"
    raise RewardFailedError(
        f"{rule}: the payload of task {trajectory.task_id!r} has no {key!r}; it has {known}. "
        "Name the key, or give what is expected"
    )


@dataclass(frozen=True, slots=True)
class Normal:
    """Text normalization: the differences that a comparison ignores."""

    case: bool = True
    space: bool = True
    """Ignore whitespace around the text, and take each run of it inside as one space."""
    form: bool = True
    """Ignore Unicode forms by NFKC: full width, ligatures, composed accents."""

    def __call__(self, text: str) -> str:
        if self.form:
            text = unicodedata.normalize("NFKC", text)
        if self.case:
            text = text.casefold()
        if self.space:
            text = " ".join(text.split())
        return text


_LONGEST_CHARACTERS = 300
_LARGEST_EXPONENT = 400
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_UNSIGNED = r"(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\.)\.\d+)"
_DECIMAL = rf"{_UNSIGNED}(?:[eE][+-]?\d+)?"
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)\]])[+\-\u2212]\$?)?(?<!\w)(?<!\d\.)"
    rf"(?P<chain>{_DECIMAL}(?:\s?/\s?{_DECIMAL})*)",
    re.ASCII,
)
_SEPARATORS = re.compile("[,\u00a0\u2009\u202f]")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text; None if there is none, or if it is too large."""
    found = deque(_NUMBER.finditer(_FRACTION.sub(r"\1/\2", text)), maxlen=1)
    if not found:
        return None
    match = found.pop()
    terms = [_decimal(term.strip()) for term in match["chain"].split("/")]
    top, bottom = terms if len(terms) == 2 else (terms[-1], Fraction(1))  # three are a date
    if top is None or not bottom:
        return None
    return -(top / bottom) if (match["sign"] or "+")[0] != "+" else top / bottom


def is_close(given: Fraction, expected: Fraction, relative: float, absolute: float) -> bool:
    """Return whether two numbers differ by at most the larger of two tolerances, exactly.

    The relative tolerance is a fraction of the expected number.
    """
    allowed = max(Fraction(str(relative)) * abs(expected), Fraction(str(absolute)))
    return abs(given - expected) <= allowed


def _decimal(text: str) -> Fraction | None:
    digits = _SEPARATORS.sub("", text)
    exponent = re.split("[eE]", digits)[1:]
    if len(digits) > _LONGEST_CHARACTERS or any(abs(int(e)) > _LARGEST_EXPONENT for e in exponent):
        return None
    return Fraction(digits)
