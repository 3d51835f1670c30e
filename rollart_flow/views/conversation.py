"""The conversation of a trajectory as one row for each message."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from rollart_flow.store.snapshot import Snapshot
from rollart_flow.types.messages import Role, message_from_json


def conversation(snapshot: Snapshot, trajectory: str, turn: int = 1) -> pl.LazyFrame:
    """Return the messages of a trajectory in order.

    Columns: turn, role, name (of the tool of a result), text, thinking, calls (tool calls, as a
    JSON list), images (names of the images of the message), and sampled: whether the row has the
    tokens of the message as its own. An environment that shows text and takes text has no messages;
    then each observation is one of the user, and each action one of the assistant.

    Args:
        snapshot: the tables.
        trajectory: its id.
        turn: first turn of the result, from 1.
    """
    mine = pl.col("trajectory_id") == trajectory
    spoken = pl.col("messages").alias("spoken")
    plain = pl.when(pl.col("messages").is_null()).then("turns").alias("turns")
    count = pl.col("turns").list.len().alias("count")
    row = snapshot.trajectories.filter(mine).select(spoken, plain, count).head(1)
    rows: list[tuple[Any, ...]] = []
    for found in row.collect().to_dicts():
        if found["spoken"] is None:
            rows += _of_turns(found["turns"])
        else:
            rows += _of_messages(json.loads(found["spoken"]), found["count"])
    shown = [row for row in rows if row[0] >= turn - 1]
    return pl.LazyFrame(shown, schema=_SCHEMA, orient="row")


def _of_turns(turns: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for number, turn in enumerate(turns):
        yield number, "user", None, turn["observation"], None, None, None, False
        yield number, "assistant", None, turn["action"], None, None, None, True


def _of_messages(forms: Sequence[Mapping[str, Any]], turns: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of stored messages; the last `turns` numbers are those of the row itself."""
    own = {*list(dict.fromkeys(form["turn"] for form in forms))[-turns:]} if turns else set()
    for form in forms:
        message = message_from_json(form)
        calls = json.dumps(form["tool_calls"], ensure_ascii=False) if message.tool_calls else None
        images = [image.image_id for image in message.images] or None
        sampled = message.role is Role.ASSISTANT and form["turn"] in own
        yield (
            form["turn"], str(message.role), message.name, message.shown, message.thinking, calls,
            images, sampled,
        )  # fmt: skip


_SCHEMA = pl.Schema({
    "turn": pl.Int64(), "role": pl.String(), "name": pl.String(), "text": pl.String(),
    "thinking": pl.String(), "calls": pl.String(), "images": pl.List(pl.String()),
    "sampled": pl.Boolean(),
})  # fmt: skip
