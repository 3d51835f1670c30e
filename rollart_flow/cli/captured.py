"""The calls of a captured agent, for `rollart show RUN --trajectory ID`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import grid
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.store import Snapshot

_SHOWN = (
    "number", "wire", "client", "kind", "evidence", "parent", "trajectory_id", "start",
    "answer_start", "answer_end", "trained_tokens", "control", "refusal", "error", "joins",
    "replays", "mismatches", "hung_up", "queue_s", "call_s",
)  # fmt: skip


def read_calls(tables: "Snapshot", episode_id: str) -> dict[str, Any]:
    """Return `calls` of an attempt and `account` of its tokens; nothing without calls."""
    import polars as pl

    mine = pl.col("episode_id") == episode_id
    rows = tables.exchanges.filter(mine).select("seq", *_SHOWN).sort("number", "seq").collect()
    if rows.is_empty():
        return {}
    from rollart_flow.analysis.delivery import token_account

    calls = rows.unique("number", keep="first", maintain_order=True).drop("seq").to_dicts()
    account = token_account(tables, episode_id)
    return {"calls": calls, "account": account and account.as_json()}


def calls_shown(row: Mapping[str, Any]) -> list[RenderableType]:
    """Return the calls of an attempt as a table; nothing without calls."""
    calls = row.get("calls")
    if not calls:
        return []
    numbers = {each["trajectory_id"]: each["branch"] for each in row.get("branches", [row])}
    table = _table(calls, numbers)
    heading = f"{counted(len(calls), 'call')}; {_account(row['account'])}"
    fraction = row["delivered_fraction"]
    if fraction is not None and row["reward"] is not None:
        heading = f"{heading}; delivered_fraction {fraction:.3f}"
    return ["", heading, table]


def _account(values: Mapping[str, Any]) -> str:
    from rollart_flow.analysis.delivery import TokenAccount

    names = (field.name for field in fields(TokenAccount))
    return str(TokenAccount(**{name: values[name] for name in names}))


def _table(calls: Sequence[Mapping[str, Any]], numbers: Mapping[str, int | None]) -> Table:
    headings = (
        "call", "wire", "kind", "evidence", "parent", "branch", "prompt", "sampled", "trained",
        "seconds", "note",
    )  # fmt: skip
    table = grid(headings, right="call parent branch prompt sampled trained seconds")
    for call in calls:
        begun, ended = call["answer_start"], call["answer_end"]
        sampled = 0 if begun is None else ended - begun
        table.add_row(
            str(call["number"]),
            call["wire"],
            call["kind"],
            call["evidence"],
            "-" if call["parent"] is None else str(call["parent"]),
            "-" if begun is None else str(numbers.get(call["trajectory_id"]) or 0),
            "-" if begun is None else str(begun),
            str(sampled),
            str(call["trained_tokens"]),
            f"{call['call_s']:.3f}",
            _note(call),
        )
    return table


def _note(call: Mapping[str, Any]) -> Text:
    """Return what was unusual about a call."""
    refused = call["refusal"] and f"refused: {call['refusal']}"
    counts = (f"{call[name]} {name}" for name in ("joins", "replays", "mismatches") if call[name])
    own = "the gateway's own text" if call["control"] else None
    left = "hung up" if call["hung_up"] else None
    said = [part for part in (refused, call["error"], own, left, *counts) if part]
    return Text(", ".join(said), style="red" if refused or call["mismatches"] else "")
