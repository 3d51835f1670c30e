"""Which text of a trajectory is the answer, what was expected, and when two texts are the same.

Invariant: a trajectory without the wanted text has no answer (None), which no rule takes for right;
a task without the wanted key is an error, since no trajectory of it could ever be right.
"""

import json
import re
import unicodedata
from dataclasses import dataclass

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.types import Trajectory

BOXED = r"\boxed"
"""As `inside`: what the last `\\boxed{...}` holds."""

_BRACE = re.compile(r"\\boxed\{|[{}]")
_TAG = re.compile(r"[A-Za-z][\w-]*")


def check_inside(rule: str, inside: str) -> None:
    """Refuse what is neither empty, `BOXED` nor the name of a tag.

    Raises:
        SettingsError: names the rule.
    """
    if inside and inside != BOXED and _TAG.fullmatch(inside) is None:
        raise SettingsError(
            rf"{rule}: inside is {inside!r}; give \boxed or the bare name of a tag, such as answer"
        )


def answer_of(trajectory: Trajectory, inside: str = "") -> str | None:
    """The text of the last action, or the last part of it that is marked; None: there is none.

    Args:
        trajectory: any.
        inside: empty: the whole action; `BOXED`: what `\\boxed{...}` holds; else the name of a tag:
            what stands between `<name>` and `</name>`.
    """
    if not trajectory.turns:
        return None
    action = trajectory.turns[-1].action
    if not inside:
        return action
    return last_boxed(action) if inside == BOXED else last_tagged(action, inside)


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` holds, inner braces included; None: none that is closed."""
    start, found = -1, None
    open_braces: list[int | None] = []
    for match in _BRACE.finditer(text):
        if match[0] != "}":
            open_braces.append(match.end() if len(match[0]) > 1 else None)
        elif open_braces and (opened := open_braces.pop()) is not None and opened > start:
            start, found = opened, text[opened : match.start()]
    return found


def last_tagged(text: str, tag: str) -> str | None:
    """What the last `<tag>...</tag>` holds; None: none that is closed."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if end < 0 or start < 0 else text[start + len(tag) + 2 : end]


def from_task(trajectory: Trajectory, key: str, rule: str) -> object:
    """The value of a key of the task's payload.

    Raises:
        RewardFailedError: the payload has no such key; names those that it has.
    """
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
    """What is ignored where texts are compared."""

    case: bool = True
    space: bool = True
    """Around the text; and a run of blanks inside it is one."""
    form: bool = True
    """Of the same characters, by Unicode's NFKC: full width, ligatures, composed accents."""

    def __call__(self, text: str) -> str:
        """A text without what is ignored."""
        if self.form:
            text = unicodedata.normalize("NFKC", text)
        if self.case:
            text = text.casefold()
        if self.space:
            text = " ".join(text.split())
        return text
