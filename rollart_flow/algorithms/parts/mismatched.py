"""Mismatched trajectories: the start of each with what another one did.

KTO estimates the divergence of the policy from its reference on completions that do not belong to
their prompts. A trajectory's prompt is all that precedes its first action token; its completion is
the rest, observations included.

Source: KTO (2402.01306) section 4, the estimate of z_0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

MISMATCHED = "mismatched_"
"""Beginning of the names of columns that belong to mismatched trajectories."""

_OWN = ("token_ids", "action_mask", "logprobs")
_COMPLETION = ("sampling", "kept_token_ids")


def mismatched(rows: pa.Table) -> pa.Table:
    """Return rows that begin as each row, and go on as the next one of another group.

    If all rows are of one group, they go on as the next row. The rows have the columns that
    recomputing their logprobs takes.

    Raises:
        TrainerError: a row has images, whose tokens cannot be mixed with others'.
    """
    import pyarrow as pa

    from rollart_flow.errors import TrainerError

    if "images" in rows.column_names and rows["images"].null_count < rows.num_rows:
        raise TrainerError(
            "trajectories with images have no mismatched completions; take reference_point='zero'"
        )
    others = pa.array(_next_of_another_group(rows["group_id"].to_pylist()))
    masks = rows["action_mask"].to_pylist()
    starts = [mask.index(True) if True in mask else len(mask) for mask in masks]
    columns = {"trajectory_id": rows["trajectory_id"]}
    for name in _OWN:
        lists = rows[name].to_pylist()
        columns[name] = pa.array(
            [
                [*lists[row][: starts[row]], *lists[other][starts[other] :]]
                for row, other in enumerate(others.to_pylist())
            ],
            rows.schema.field(name).type,
        )
    return pa.table(columns | {name: rows[name].take(others) for name in _COMPLETION})


def _next_of_another_group(groups: Sequence[str]) -> list[int]:
    """Return for each row the place of the first row after it, cyclically, of another group."""
    count = len(groups)
    found = []
    for row, group in enumerate(groups):
        following = [(row + step) % count for step in range(1, count + 1)]
        found.append(next((at for at in following if groups[at] != group), following[0]))
    return found
