"""Samples: a few attempts of a record as bounded texts that no viewer takes for markup."""

import html
import re
from collections.abc import Mapping
from typing import Any

from rollart_flow.metrics.grouped import first_rows
from rollart_flow.metrics.sampled import SampledAttempt
from rollart_flow.metrics.window import Window, conversation
from rollart_flow.text import storable

LONGEST_MESSAGE = 1_000
"""Characters of a message that are kept."""
LONGEST_TEXT = 4_000
"""Characters of a conversation that are kept."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that reorder or hide text."""


def sampled_attempts(window: Window, count: int) -> tuple[SampledAttempt, ...]:
    """Return the best, the worst and further attempts of a record, the same at every reading."""
    rows = first_rows(window.attempts).sort(
        "reward", "trajectory_id", descending=[True, False], nulls_last=True
    )
    ranks = dict.fromkeys([0, rows.height - 1, *range(1, rows.height - 1)])
    picked = sorted(list(ranks)[:count]) if rows.height and count else []
    return tuple(_sampled(rows.row(rank, named=True)) for rank in picked)


def _sampled(row: Mapping[str, Any]) -> SampledAttempt:
    messages, left = [], LONGEST_TEXT
    for message in conversation(row):
        if left <= 0:
            messages.append(("...", "more messages follow"))
            break
        said = plain_text(message["content"], min(left, LONGEST_MESSAGE))
        left -= len(said)
        messages.append((plain_text(message["role"], 20), said))
    return SampledAttempt(
        str(row["trajectory_id"]), row["domain"], row["outcome"], row["reward"], len(row["turns"]),
        tuple(messages),
    )  # fmt: skip


def plain_text(text: str, limit: int) -> str:
    """Return a text of a model or an environment cut, with its control characters and markup
    escaped: a viewer that takes it for HTML shows it as it is."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    visible = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", storable(cut))
    return html.escape(visible, quote=False)
