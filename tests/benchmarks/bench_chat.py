"""Time of rendering and parsing one turn of a conversation with tools or thinking.

The chain has about 8,000 tokens of a byte-level tokenizer after 100 turns, in Qwen3's template.
With history="keep" the tokens of earlier turns stay, with "branch" each turn shows what the
template renders anew, without the thinking of earlier turns, as a branch of its own. Such a branch
has a copy of all tokens: a chain of 128 thousand tokens says what that costs. Mistral-7B-v0.3's
template moves the tools to the last question, so that each turn changes an earlier one.
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
MOST_LATER = 1.5
"""Goal for the last turns beside the first ones."""
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
THOUGHT = "<think>\nHm.\n</think>\n\nSure<|im_end|>"
ASKED = "And how many would it be with one more of each?"
SIZES = (8_000, 128_000)
"""Tokens of the chains whose branches are compared."""
MOST_GROWTH = 2.0
"""Goal for a turn at the greater size beside one at the smaller."""


def run() -> list[Record]:
    """Measure first and last turns of both histories, and rendering all once."""
    kept, size, whole = _kept()
    again = partial(_branched, QWEN3, QWEN3.ids(THOUGHT))
    counted = partial(_branched, MISTRAL, MISTRAL.ids("Sure</s>"))
    return [
        *_records("chat", kept, size, f"{whole * 1e6:.0f} us to render all {size} tokens again"),
        *_records("chat: history=branch", *again()),
        *_grown(),
        *_records("chat: history=branch, a template that moves the tools", *counted()),
    ]


def _records(
    name: str, turns: list[list[float]], size: int, peer: str | None = None
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
        record(f"{last}, of a turn of {TURN_S} s", percent, "%", at_most=MOST_PERCENT),
    ]
    ratio = f"{name}: last turns beside first turns"
    return [*made, record(ratio, late / early, "x", at_most=MOST_LATER)]


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


def _grown() -> list[Record]:
    """Return the time of a turn that begins a branch of a chain of each size, and their ratio."""
    talk = _BranchingTalk(QWEN3, QWEN3.ids(THOUGHT), AGAIN * TURNS)
    found = []
    for size in SIZES:
        while len(talk.dialogue.recorder) < size:
            talk.turn(ASKED * 30)
        found.append(median(talk.turn(ASKED) for _ in range(AGAIN)))
    names = [f"chat: history=branch, a turn at {size} tokens" for size in SIZES]
    made = [record(name, s * 1e6, "us") for name, s in zip(names, found, strict=True)]
    ratio = f"{names[1]} beside {SIZES[0]}"
    return [*made, record(ratio, found[1] / found[0], "x", at_most=MOST_GROWTH)]


class _BranchingTalk:
    """A dialogue with history="branch" whose policy always writes the same.

    Args:
        family: whose template it has.
        written: tokens of each action.
        most: turns that it may have.
    """

    def __init__(self, family: Family, written: tuple[int, ...], most: int) -> None:
        codec = TextCodec({**family.files, "chat.json": ChatSettings(history=BRANCH).as_text()})
        self.dialogue = Dialogue(codec, AttemptLimits(context_tokens=1 << 20, max_branches=most))
        count = len(written)
        self._made = Generation(written, (-1.0,) * count, (0,) * count, FinishReason.STOP)
        self._shown = (user("Add one"),)
        self._number = 0
        self.dialogue.begin(self._shown, TOOLS)

    def turn(self, asked: str) -> float:
        """Return the seconds of a turn, after which the environment asks something."""
        begun = time.process_time()
        self.dialogue.observe(self._number, self._shown)
        self.dialogue.act(self._made, 0.0)
        seconds = time.process_time() - begun
        self.dialogue.recorder.end_turn()
        self._number += 1
        self._shown = (user(f"{asked} {self._number}"),)
        return seconds


def _branched(family: Family, written: tuple[int, ...]) -> tuple[list[list[float]], int]:
    """Return the seconds of each turn by dialogue, and the tokens of its last chain."""
    turns, size = [], 0
    for _ in range(AGAIN):
        talk = _BranchingTalk(family, written, TURNS + 1)
        turns.append([talk.turn(ASKED) for _ in range(TURNS)])
        size = len(talk.dialogue.recorder)
    return turns, size


def _seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun
