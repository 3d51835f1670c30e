"""The calls of a session as the values that its attempt carries to the table `exchanges`.

The invariant: positions of a call are those in the chain of its branch's row, and its trained
tokens are those that the row's `action_mask` has.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from rollart_flow.control.environment import Codec, has_versions
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.types import Sampling, Trajectory
from rollart_flow.types.exchanges import StoredExchange

_ALIKE = (
    "number", "wire", "client", "model", "lineage", "stream", "digest", "request",
    "reused_messages", "parent", "dropped", "answer", "answer_id", "control", "refusal", "error",
    "joins", "replays", "mismatches", "hung_up", "prompt_ids", "answer_ids",
)  # fmt: skip
"""Fields that an exchange and its stored form have in common."""


def with_exchanges(
    branches: Sequence[Trajectory],
    exchanges: Sequence[Exchange],
    codec: Codec,
    wall: Callable[[float], datetime],
) -> tuple[Trajectory, ...]:
    """Return the branches of an attempt, the first of which carries the attempt's calls.

    Args:
        branches: all rows of the attempt, branch 0 first.
        exchanges: the calls of its session, in the order of their arrival.
        codec: codec of the policy; its versions are stored, if it has any.
        wall: converts a time of the running loop to UTC.
    """
    first, *later = branches
    rows = {branch.branch: branch for branch in branches}
    parser, template = None, None
    if has_versions(codec):
        parser, template = codec.parser_version, codec.template_version
    stored = tuple(
        StoredExchange(
            **{name: getattr(each, name) for name in _ALIKE},
            **_tokens(each, rows),
            kind=each.kind,
            evidence=each.evidence,
            requested=_json(each.requested),
            effective=_effective(first.sampling, each),
            arrived_at=wall(each.arrived),
            generating_at=None if each.generating is None else wall(each.generating),
            first_token_at=None if each.first_token is None else wall(each.first_token),
            ended_at=wall(each.ended),
            parser=parser,
            template=template,
        )
        for each in exchanges
    )
    return replace(first, exchanges=stored), *later


def _tokens(exchange: Exchange, rows: Mapping[int, Trajectory]) -> dict[str, Any]:
    """Return where the tokens of a call are."""
    row = None if exchange.branch is None else rows.get(exchange.branch)
    if row is None:
        return {}
    return {
        "trajectory_id": row.trajectory_id,
        "start": exchange.start,
        "answer_start": exchange.answer_start,
        "answer_end": exchange.end,
        "trained_tokens": sum(row.action_mask[exchange.answer_start : exchange.end]),
    }


def _effective(sampling: Sampling, exchange: Exchange) -> str:
    """Return the sampling of a call as JSON; settings that restrict nothing are left out."""
    if exchange.generating is None:
        return "{}"
    used = asdict(replace(sampling, max_tokens=exchange.max_tokens or sampling.max_tokens))
    return _json({name: value for name, value in used.items() if value != ()})


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(dict(value), ensure_ascii=False, sort_keys=True)
