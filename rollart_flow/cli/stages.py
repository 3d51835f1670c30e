"""The activity of each stage of a run as lines below its progress."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import duration
from rollart_flow.errors import StoreError
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.analysis.activity import StageActivity

PERIOD_S = 2.0
"""Time between two looks at the tables [s]."""


class Shows(Protocol):
    """A view that has a place for the activity of stages."""

    activity: "StageActivity | None"


def render_stages(activity: "StageActivity") -> Table:
    """A line for each stage."""
    table = Table.grid(padding=(0, 2))
    for stage, said in stage_lines(activity).items():
        table.add_row(Text(f"  {stage}", style="cyan"), said)
    return table


def stage_lines(activity: "StageActivity") -> dict[str, str]:
    """Return a line about the activity of each stage, by its name."""
    a = activity
    engines, wait = counted(a.engines, "engine"), "waits" if a.pending == 1 else "wait"
    since = f" for {duration(a.trainer_s)}" if a.trainer_s else ""
    return {
        "rollout": f"{counted(a.in_flight, 'attempt')} in flight, {a.turns_per_s:.1f} turns/s, "
        f"{a.attempts_per_s:.1f} attempts/s",
        "engines": f"{engines} {a.engine_state}, version {a.served_version}, "
        f"{a.tokens_per_s:,.0f} tokens/s",
        "buffer": f"{counted(a.pending, 'attempt')} {wait} for a batch, "
        f"{a.committed:,} ended so far",
        "trainer": f"{a.trainer}{since}",
    }


@contextmanager
def following_stages(uri: str, view: Shows) -> Iterator[None]:
    """Keep the activity of a view current from the run's tables while the block runs."""
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(uri, view, over), name="stages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PERIOD_S)


def _follow(uri: str, view: Shows, over: threading.Event) -> None:
    from rollart_flow.analysis.activity import ActivityReader
    from rollart_flow.store import Run

    reader: ActivityReader | None = None
    while not over.wait(PERIOD_S):
        try:
            reader = reader or ActivityReader(Run(uri))
            reader.read()
            view.activity = reader.activity()
        except (StoreError, OSError):
            continue  # the storage does not answer now; the run itself says so if it lasts
