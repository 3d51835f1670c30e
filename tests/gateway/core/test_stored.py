"""The calls of a session as its attempt carries them."""

import json
from dataclasses import replace
from datetime import datetime, timedelta

from rollart_flow.gateway.core.exchange import CallKind, Evidence, Exchange
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.types import Sampling
from tests.builders import MOMENT, trajectory


class PlainCodec:
    """A codec that names no versions."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        return (len(text),)

    def decode(self, token_ids: object) -> str:
        return ""


class NamedCodec(PlainCodec):
    """A codec that names its versions."""

    parser_version = "hermes/1"
    template_version = "abc"


def wall(seconds: float) -> datetime:
    return MOMENT + timedelta(seconds=seconds)


def call(number: int, **fields: object) -> Exchange:
    made = Exchange(
        number=number,
        wire="chat",
        client="pi",
        model="any",
        lineage="",
        stream=False,
        digest="d",
        request="{}",
        arrived=float(number),
        ended=number + 1.0,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


FIRST = trajectory(sampling=Sampling(max_tokens=64, stop_token_ids=(9,)))
"""Five tokens, of which the last two are sampled."""
SECOND = replace(
    FIRST, trajectory_id="g-00.1", branch=1, parent="g-00", action_mask=(False,) * 4 + (True,)
)


def test_calls_refer_to_the_rows_that_have_their_tokens() -> None:
    calls = [
        call(0, branch=0, start=0, answer_start=3, end=5, generating=0.5, max_tokens=8),
        call(1, branch=1, start=2, answer_start=3, end=5, generating=1.5, kind=CallKind.SIDE),
        call(2, refusal="overflow", error="the prompt has 9 tokens"),
    ]
    first, second = with_exchanges([FIRST, SECOND], calls, PlainCodec(), wall)
    assert second is SECOND
    stored = first.exchanges
    assert stored is not None
    assert replace(first, exchanges=None) == FIRST
    assert [each.trajectory_id for each in stored] == ["g-00", "g-00.1", None]
    assert [each.trained_tokens for each in stored] == [2, 1, 0]
    assert [each.sampled_tokens for each in stored] == [2, 2, 0]
    assert [each.answer_start for each in stored] == [3, 3, None]
    assert [each.kind for each in stored] == ["main", "side", "main"]
    assert stored[2].refusal == "overflow"


def test_times_are_utc_and_what_was_sampled_with_is_beside_what_was_asked_for() -> None:
    asked = {"temperature": 0.2, "max_tokens": 8}
    calls = [
        call(
            0,
            generating=0.5,
            first_token=0.75,
            max_tokens=8,
            requested=asked,
            evidence=Evidence.ECHO,
        ),
        call(1, requested=asked),
    ]
    (row,) = with_exchanges([FIRST], calls, NamedCodec(), wall)
    assert row.exchanges is not None
    sampled, refused = row.exchanges
    assert sampled.first_token_at == MOMENT + timedelta(seconds=0.75)
    assert refused.first_token_at is None
    assert (sampled.arrived_at, sampled.queue_s, sampled.call_s) == (MOMENT, 0.5, 1.0)
    assert json.loads(sampled.requested) == asked
    used = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "stop_token_ids": [9]}
    assert json.loads(sampled.effective) == used
    assert (refused.effective, refused.generating_at) == ("{}", None)
    assert (sampled.parser, sampled.template, sampled.evidence) == ("hermes/1", "abc", "echo")
