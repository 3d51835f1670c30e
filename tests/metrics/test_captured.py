"""Figures of captured agents' calls are what the rows of calls and events say."""

from datetime import timedelta
from pathlib import Path

from rollart_flow.attempt_rows import rows_beside
from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.metrics.spans import run_spans
from rollart_flow.metrics.window import RunRecord
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.store import Run, open_run
from rollart_flow.types import Event, EventKind
from tests.builders import MOMENT, exchange, step_row, trajectory
from tests.runs import new_writer


def a_step_with_calls(folder: Path) -> Run:
    """A step with an attempt of three calls, of 0.75 s each but for the last, which was refused.

    The engines were suspended from 0.5 s to 0.75 s, and from 1.9 s on, which is in the middle of
    each of the first two generations.
    """
    calls = (
        exchange(
            0, trajectory_id="g-00", first_token_at=MOMENT + timedelta(seconds=0.4), hung_up=True
        ),
        exchange(1, trajectory_id="g-00", first_token_at=MOMENT + timedelta(seconds=1.8), joins=2),
        exchange(2, generating_at=None, refusal="overflow"),
    )
    rows = [trajectory("g", exchanges=calls)]
    moments = {0.75: EventKind.RESUME, 1.9: EventKind.SUSPEND}
    events = [
        (MOMENT + timedelta(seconds=0.55), Event(EventKind.SUSPEND, "v", detail={"seconds": 0.05})),
        *((MOMENT + timedelta(seconds=at), Event(kind, "v")) for at, kind in moments.items()),
        *((MOMENT, Event(EventKind.UNKNOWN_KEY, "host", detail={"requests": n})) for n in (1, 3)),
    ]
    with new_writer(folder) as writer:
        writer.commit_many({"trajectories": trajectories_table(rows), **rows_beside(rows)})
        writer.commit("events", events_table(events))
        writer.commit("steps", step_row(1))
    return open_run(folder / "a")


def the_record(run: Run) -> RunRecord:
    """The only record of a run."""
    (record,) = RecordReader(run).after(Cursor())
    return record


def test_calls_have_times_to_their_first_token_and_times_while_engines_were_suspended(
    tmp_path: Path,
) -> None:
    figures = flat(the_record(a_step_with_calls(tmp_path)).figures)
    found = {name: round(figures[f"gateway/{name}"], 6) for name in (
        "calls", "first_token_seconds", "first_token_seconds/max", "paused_seconds",
        "paused_seconds/count", "unknown_keys", "hang_ups", "joins", "refusals/overflow",
        "call_seconds",
    )}  # fmt: skip
    assert found == {
        "calls": 3, "first_token_seconds": 0.6, "first_token_seconds/max": 0.8,
        "paused_seconds": (0.25 + 0.1) / 2, "paused_seconds/count": 2, "unknown_keys": 4,
        "hang_ups": 1, "joins": 2, "refusals/overflow": 1, "call_seconds": 1.0,
    }  # fmt: skip


def test_calls_are_the_turns_of_their_trajectory(tmp_path: Path) -> None:
    spans = list(run_spans(the_record(a_step_with_calls(tmp_path))))
    calls = [(s.name, s.key, s.parent, s.attributes.get("first_token_s")) for s in spans]
    assert [call for call in calls if call[0] in ("turn", "generation")] == [
        ("turn", "call 0", "", None),
        ("generation", "call 0 generation", "call 0", 0.15),
        ("turn", "call 1", "", None),
        ("generation", "call 1 generation", "call 1", 0.55),
    ]
    assert {span.trace for span in spans} == {"g-00", "step 1"}
