"""Output of commands: tables for people, JSON for programs, one line for an error."""

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
    """An interrupt by Ctrl-C with its own message in place of the hint to resume a run."""


def console() -> Console:
    """Return a console for standard output, with a fixed width if it is no terminal.

    Brackets in text are shown as they are, not as markup.
    """
    terminal = Console(highlight=False, markup=False)
    if terminal.is_terminal:
        return terminal
    return Console(highlight=False, markup=False, width=_PIPE_COLUMNS)


def as_text(renderable: RenderableType) -> str:
    """Return the console's output without colors, for notebooks."""
    recorder = Console(file=StringIO(), width=_PIPE_COLUMNS, highlight=False, markup=False)
    with recorder.capture() as captured:
        recorder.print(renderable)
    return captured.get()


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:
    """Convert a value to JSON types: times become ISO 8601, numbers that are not finite become
    null.
    """
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
    """Print one line on standard error and return the exit code."""
    line = " ".join(message.split())
    sys.stdout.flush()
    sys.stderr.write(f"error: {line}\n")
    return code


def duration(seconds: float) -> str:
    """Format seconds as 0.4s, 12s, 3m20s or 2h05m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], low: float = 0.0, high: float = 1.0) -> str:
    """Render a curve in one line, between fixed limits."""
    span = (high - low) or 1.0
    places = (min(1.0, max(0.0, (value - low) / span)) for value in values)
    return "".join(_BARS[round(place * (len(_BARS) - 1))] for place in places)
