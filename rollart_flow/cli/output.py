"""Output of commands: tables for people, JSON for programs, one line for an error."""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 120
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal obeys, that reorder text, or that cannot be encoded."""


class Interrupted(Exception):  # noqa: N818  nothing is wrong
    """An interrupt by Ctrl-C with a message of its own."""


def escape_controls(text: str) -> str:
    """Return the text with `\\uXXXX` for control characters except tabs and line ends.

    Text of a model, an environment or another user's run could otherwise write to the clipboard or
    hide what a terminal shows. JSON remains equal JSON.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EscapingConsole(Console):
    """A console that escapes control characters in whatever it prints."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render text with escapes; a text that had any loses the styles of its parts."""
        text = self.render_str(renderable) if isinstance(renderable, str) else renderable
        if isinstance(text, Text) and _CONTROLS.search(text.plain):
            text = text.blank_copy(escape_controls(text.plain))
        return super().render(text, options)


def console() -> Console:
    """Return a console for standard output, with a fixed width if it is no terminal.

    Brackets in text are shown as they are, not as markup, and control characters are escaped.
    """
    terminal = EscapingConsole(highlight=False, markup=False)
    if terminal.is_terminal:
        return terminal
    return EscapingConsole(highlight=False, markup=False, width=_PIPE_COLUMNS)


def as_text(renderable: RenderableType) -> str:
    """Return the console's output without colors, for notebooks."""
    recorder = EscapingConsole(file=StringIO(), width=_PIPE_COLUMNS, highlight=False, markup=False)
    with recorder.capture() as captured:
        recorder.print(renderable)
    return captured.get()


def grid(
    headings: Iterable[str], rows: Iterable[Iterable[str | Text]] = (), right: str = ""
) -> Table:
    """Return a table with folded columns; `right` names those that are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        numbers = heading in right.split()
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def live(render: Callable[[float], RenderableType], out: Console) -> Iterator[Live]:
    """Show what `render` makes of the seconds since the beginning, while the block runs."""
    began = time.monotonic()
    shown = Live(
        get_renderable=lambda: render(time.monotonic() - began),
        console=out,
        refresh_per_second=4,
        transient=True,
    )
    with shown:
        yield shown


def print_json(value: object) -> None:
    text = json.dumps(plain(value), ensure_ascii=False, indent=2)
    sys.stdout.write(escape_controls(text) + "\n")


def plain(value: Any) -> Any:
    """Convert to JSON types: times become ISO 8601, numbers that are not finite become null."""
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
    line = escape_controls(" ".join(message.split()))
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
