"""What commands print: tables for people, JSON for programs, one line for an error."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

_PIPE_COLUMNS = 120


class Interrupted(Exception):  # noqa: N818  nothing is wrong
    """Ctrl-C, with what to say instead of how a run is resumed."""


def console() -> Console:
    """Where people read: standard output as it is now; wide where it is no terminal.

    Text is shown as it is: brackets in it are no markup.
    """
    terminal = Console(highlight=False, markup=False)
    if terminal.is_terminal:
        return terminal
    return Console(highlight=False, markup=False, width=_PIPE_COLUMNS)


def as_text(renderable: RenderableType) -> str:
    """What the console would show, without colours: for notebooks."""
    recorder = Console(file=StringIO(), width=_PIPE_COLUMNS, highlight=False, markup=False)
    with recorder.capture() as captured:
        recorder.print(renderable)
    return captured.get()


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:
    """A value as JSON knows it: times in ISO 8601, and null for what is not a finite number."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def fail(message: str, code: int) -> int:
    """Print one line on standard error; the exit code, handed through."""
    line = " ".join(message.split())
    sys.stdout.flush()
    sys.stderr.write(f"error: {line}\n")
    return code


def duration(seconds: float) -> str:
    """Seconds as people say them: 0.4s, 12s, 3m20s, 2h05m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], low: float = 0.0, high: float = 1.0) -> str:
    """A curve in one line, between fixed ends."""
    span = (high - low) or 1.0
    places = (min(1.0, max(0.0, (value - low) / span)) for value in values)
    return "".join(_BARS[round(place * (len(_BARS) - 1))] for place in places)
