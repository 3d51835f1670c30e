"""Time of rendering and parsing one turn of a conversation with tools or thinking.

The chain has about 8,000 tokens of a byte-level tokenizer after 100 turns, in Qwen3's template.
With history="keep" the tokens of earlier turns stay, with "branch" each turn shows what the
template renders anew, without the thinking of earlier turns, as a branch of its own.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

from rollart_flow.control.rollout.dialogue import Dialogue
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.settings import BRANCH, ChatSettings
from rollart_flow.types import AttemptLimits, FinishReason, Generation
from rollart_flow.types.messages import system, tool_result, user
from tests.benchmarks.records import Record, record
from tests.models.chat.families import MISTRAL, QWEN3, TOOLS, Family

TURNS = 100
AGAIN = 20
TURN_S = 0.1
"""Seconds of a turn, with its generation: some tokens of a small model on a GPU."""
MOST_PERCENT = 2.0
"""Goal for rendering and parsing as a share of a turn."""
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
THOUGHT = "<think>\nHm.\n</think>\n\nSure<|im_end|>"
ASKED = "And how many would it be with one more of each?"


def run() -> list[Record]:
    """Measure first and last turns of both histories, and rendering all once."""
    kept, size, whole = _kept()
    again = partial(_branched, QWEN3, QWEN3.ids(THOUGHT))
    counted = partial(_branched, MISTRAL, MISTRAL.ids("Sure</s>"))
    return [
        *_records("chat", kept, size, f"{whole * 1e6:.0f} us to render all {size} tokens again"),
        *_records("chat: history=branch", *again()),
        *_records("chat: history=branch, a template that is rendered whole", *counted(), most=None),
    ]


def _records(
    name: str,
    turns: list[list[float]],
    size: int,
    peer: str | None = None,
    most: float | None = 1.5,
) -> list[Record]:
    """Return the time of the first and last turns, the last as a share of a turn, and their ratio.

    Turns 2 to 11 are the first: the first one of a codec also finds out what the template does.
    """
    early, late = (median(second for each in turns for second in each[part]) for part in _PARTS)
    percent = 100 * late / TURN_S
    last = f"{name}: turns {TURNS - 9} to {TURNS} of {size} tokens"
    made = [
        record(f"{name}: turns 2 to 11", early * 1e6, "us/turn"),
        record(last, late * 1e6, "us/turn", peer=peer),
        record(f"{last}, of a turn of {TURN_S} s", percent, "%", at_most=most and MOST_PERCENT),
    ]
    ratio = f"{name}: last turns beside first turns"
    return [*made, record(ratio, late / early, "x", at_most=most)]


_PARTS = (slice(1, 11), slice(-10, None))


def _kept() -> tuple[list[list[float]], int, float]:
    """Return the seconds of each turn by conversation, its tokens, and the time to render all."""
    written = QWEN3.ids(WRITTEN)
    turns, whole, size = [], [], 0
    for _ in range(AGAIN):
        conversation = QWEN3.codec.converse(TOOLS)
        chain = conversation.observe([system("Be brief."), user("Add one")])
        seconds = []
        for _ in range(TURNS):
            begun = time.process_time()
            (call,) = conversation.act(written).tool_calls
            new = conversation.observe([tool_result(call, "one")])
            seconds.append(time.process_time() - begun)
            chain += written + new
        turns.append(seconds)
        size = len(chain)
        whole.append(_seconds(partial(conversation.rewritten_at, chain)))
    return turns, size, median(whole)


def _branched(family: Family, written: tuple[int, ...]) -> tuple[list[list[float]], int]:
    """Return the seconds of each turn by dialogue, and the tokens of its last chain."""
    codec = TextCodec({**family.files, "chat.json": ChatSettings(history=BRANCH).as_text()})
    limits = AttemptLimits(context_tokens=50_000, max_branches=TURNS + 1)
    count = len(written)
    made = Generation(written, (-1.0,) * count, (0,) * count, FinishReason.STOP)
    turns, size = [], 0
    for _ in range(AGAIN):
        dialogue = Dialogue(codec, limits)
        shown = (user("Add one"),)
        dialogue.begin(shown, TOOLS)
        seconds = []
        for number in range(TURNS):
            begun = time.process_time()
            dialogue.observe(number, shown)
            dialogue.act(made, 0.0)
            seconds.append(time.process_time() - begun)
            dialogue.recorder.end_turn()
            shown = (user(f"{ASKED} {number}"),)
        turns.append(seconds)
        size = len(dialogue.recorder)
    return turns, size


def _seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun
