"""Stored conversations of a simulated run, judged with the codec that made their tokens."""

from rollart_flow.replay.spoken import recorded_turns, spoken_again
from rollart_flow.types import Trajectory
from tests.dst.dialogue_codec import DialogueCodec


def misspoken(row: Trajectory, codec: DialogueCodec) -> str | None:
    """The first turn of which the stored messages do not give the tokens again; None if all do."""
    if row.messages is None and row.parent is not None:
        return None  # cut by `branching.branched`, which only messages could tell
    spoken = zip(row.turns, spoken_again(row, codec), recorded_turns(row), strict=True)
    for turn, again, recorded in spoken:
        shown = row.token_ids[turn.start : turn.start + len(again.observation_ids)]
        if shown != again.observation_ids:
            return f"turn {recorded.number} shows {shown}, its messages {again.observation_ids}"
        if recorded.action is not None and again.action != recorded.action:
            return f"turn {recorded.number} is {recorded.action}, its tokens {again.action}"
    return None
