"""Time of rendering and parsing one turn of a conversation with tools.

The chain has about 8,000 tokens of a byte-level tokenizer after 100 turns, in Qwen3's template.
"""

import time
from collections.abc import Callable
from statistics import median

from rollart_flow.types.messages import system, tool_result, user
from tests.benchmarks.records import Record, record
from tests.models.chat.families import QWEN3, TOOLS

TURNS = 100
AGAIN = 20
GOAL_US = 2000.0
"""2% of a turn that takes a tenth of a second."""
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'


def run() -> list[Record]:
    """Measure the first turn, the hundredth, and rendering the whole conversation once."""
    written = QWEN3.ids(WRITTEN)
    first, last, whole, size = [], [], [], 0
    for _ in range(AGAIN):
        conversation = QWEN3.codec.converse(TOOLS)
        chain = conversation.observe([system("Be brief."), user("Add one")])
        turns = []
        for _ in range(TURNS):
            begun = time.process_time()
            (call,) = conversation.act(written).tool_calls
            new = conversation.observe([tool_result(call, "one")])
            turns.append(time.process_time() - begun)
            chain += written + new
        first.append(median(turns[:10]))
        last.append(median(turns[-10:]))
        size = len(chain)
        whole.append(_seconds(lambda c=conversation, ids=chain: c.rewritten_at(ids)))  # type: ignore[misc]
    peer = f"{median(whole) * 1e6:.0f} us to render all {size} tokens again"
    early, late = median(first) * 1e6, median(last) * 1e6
    return [
        record("chat: rendering and parsing, turns 1 to 10", early, "us/turn", at_most=GOAL_US),
        record(f"chat: turns {TURNS - 9} to {TURNS}", late, "us/turn", at_most=GOAL_US, peer=peer),
        record("chat: last turns beside first turns", late / early, "x", at_most=1.5),
    ]


def _seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun
