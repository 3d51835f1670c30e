"""Attempts of the demonstration run at environments: a lake, sums, and pictures.

Every value follows from the step, the domain and the number of the attempt.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tokenizers import Tokenizer

from rollart_flow.control.ids import env_seed
from rollart_flow.types import FinishReason, Outcome, Reason, Sampling, Split, Trajectory
from rollart_flow.types.messages import Message, Role, messages_json, system, user
from rollart_flow.ui.demo import texts
from rollart_flow.ui.demo.chains import DemoChain

BEGAN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
STEP_S, TRAIN_S = 30.0, 12.0
GROUP_SIZE = 4
DOMAINS = ("lake", "sums", "pictures", "repair")
"""Each step trains on a group of each but `pictures`, which only every second step has."""


def at(seconds: float) -> datetime:
    """Return a moment of the run, from its beginning [s]."""
    return BEGAN + timedelta(seconds=seconds)


def formed_s(step: int) -> float:
    """Return when the batch of a step was formed [s]; its training takes `TRAIN_S`."""
    return step * STEP_S - TRAIN_S


def domains_of(step: int) -> tuple[str, ...]:
    """Return the domains that a step trains on."""
    return tuple(name for name in DOMAINS if name != "pictures" or step % 2 == 0)


@dataclass(frozen=True)
class DemoSlot:
    """The place of an attempt in the run."""

    step: int
    domain: str
    attempt: int
    split: Split = Split.TRAIN
    spare: int = 0
    """Number of a further group of the step and domain; 0 for the one that is trained on."""

    @property
    def group_id(self) -> str:
        """Id of the group."""
        cursor = (self.step - 1) * len(DOMAINS) + DOMAINS.index(self.domain)
        cursor += 1000 * self.spare
        return f"g{cursor:08d}" if self.split is Split.TRAIN else f"e{cursor:08d}"

    @property
    def name(self) -> str:
        """Id of the attempt; one of them needs quoting wherever it is used."""
        odd = (
            "'%2F<b>"
            if (self.step, self.domain, self.attempt, self.spare) == (2, "sums", 1, 0)
            else ""
        )
        return f"{self.group_id}-{self.attempt:02d}{odd}"

    @property
    def served(self) -> int:
        """Version that the engines served when the batch of the step was formed."""
        return max(0, self.step - 2)

    @property
    def versions(self) -> tuple[int, int]:
        """Policy version of the first and of the last sampled token."""
        return max(0, self.served - self.attempt % 2), self.served

    @property
    def solved(self) -> bool:
        """Whether the attempt solves its task: all of a group do, none, or some."""
        by_step = {"lake": self.step >= 4, "sums": self.attempt != 2, "pictures": True}
        return by_step.get(self.domain, self.attempt < self.step - 1)

    @property
    def created_s(self) -> float:
        """Time from the beginning of the run to that of the attempt [s]."""
        return max(0.0, formed_s(self.step) - 27.0) + 0.35 * self.attempt + self.served * 0.01

    def chain(self, tokenizer: Tokenizer) -> DemoChain:
        """Return an empty chain of the attempt."""
        fast = self.domain in ("repair", "pictures")
        hardware = "H800" if fast else "H20"
        return DemoChain(tokenizer, self.name, self.versions, f"generation-{int(fast)}", hardware)

    def trajectory(self, chain: DemoChain, reward: float | None, **fields: Any) -> Trajectory:
        """Return a completed attempt with a chain; `fields` are what differs."""
        created, reset_s = self.created_s, round(0.1 + 0.05 * self.attempt, 3)
        finished = created + reset_s + chain.seconds + 0.4
        made = Trajectory(
            trajectory_id=self.name,
            episode_id=self.name,
            group_id=self.group_id,
            task_id=f"{self.domain}/{self.step}",
            domain=self.domain,
            attempt=self.attempt,
            outcome=Outcome.COMPLETED,
            task=json.dumps({"number": self.step}),
            sampling=Sampling(max_tokens=256),
            split=self.split,
            env_seed=env_seed(self.group_id),
            env_version=f"{self.domain}/1",
            created_at=at(created),
            finished_at=at(finished),
            reset_s=reset_s,
            solved=None if reward is None else reward >= 1,
            reward=reward,
            reward_parts=None if reward is None else {"goal": reward},
            scored_at=None if reward is None else at(finished + 0.25),
            **chain.columns(),
        )
        return replace(made, **fields)


def lake(slot: DemoSlot, tokenizer: Tokenizer) -> Trajectory:
    """Return a walk over the lake, of several turns; the fourth attempt is cut off."""
    chain = slot.chain(tokenizer)
    cut = slot.attempt == GROUP_SIZE - 1
    for number, shown in enumerate(texts.LAKE):
        last = number == len(texts.LAKE) - 1
        goal = last and slot.solved and not cut
        said = "right" if slot.solved else ("down", "right", "up")[(slot.attempt + number) % 3]
        chain.turn(shown, f"walk {said}", reward=float(goal), last=last)
    cuts: Mapping[str, Any] = {"outcome": Outcome.TRUNCATED, "reason": Reason.TURN_LIMIT}
    goal = slot.solved and not cut
    return slot.trajectory(chain, float(goal), **(cuts if cut else {}))


def sums(slot: DemoSlot, tokenizer: Tokenizer) -> Trajectory:
    """Return a sum in one turn; one answer is hostile, one is cut at its length."""
    chain = slot.chain(tokenizer)
    number = 17 * slot.step
    said = f"{number} + 25 = {number + 25 if slot.solved else number}"
    finish = FinishReason.STOP
    if slot.attempt == 1:
        said = texts.HOSTILE
    elif slot.attempt == 2:
        said, finish = "I add the parts. " * 12, FinishReason.LENGTH
    shown = f"How much is {number} + 25?"
    if slot.step == 3 and slot.attempt == 0:
        shown += " " + texts.LONG_LINE
    chain.turn(shown, said, reward=float(slot.solved), last=True, finish=finish)
    form = 0.1 if slot.attempt == 0 else 0.0
    parts = {"outcome": float(slot.solved), "form": form}
    return slot.trajectory(chain, float(slot.solved) + form, reward_parts=parts)


def pictures(slot: DemoSlot, tokenizer: Tokenizer) -> Trajectory:
    """Return a question about two images; all attempts of a group get the same reward."""
    chain = slot.chain(tokenizer)
    shown = texts.picture(slot.step), texts.picture(slot.step + 1)
    messages: list[tuple[int, Message]] = [(0, system("You see pictures."))]
    for number, image in enumerate(shown):
        asked = user("Where is the dot? ", image)
        said = f"It is at {12 + 6 * number} from the left."
        chain.turn("Where is the dot? [image]", said, reward=0.5, last=number == 1)
        messages += [(number, asked), (number, Message(Role.ASSISTANT, said))]
    return slot.trajectory(
        chain, 1.0, messages=stored(messages), tool_calls=0, tool_errors=0, images=shown
    )


def stored(messages: list[tuple[int, Message]]) -> str:
    """Return messages with the number of their turn as the column `messages` holds them."""
    forms = json.loads(messages_json([message for _, message in messages]))
    numbered = ({"turn": n} | form for (n, _), form in zip(messages, forms, strict=True))
    return json.dumps([*numbered], ensure_ascii=False)


_ENDS: Mapping[str, tuple[Outcome, Reason, str | None]] = {
    "lake": (Outcome.FAILED, Reason.ENVIRONMENT_ERROR, "\x1b[31mIceError\x1b[0m: <b>it melted</b>"),
    "sums": (Outcome.STALE, Reason.STALENESS_BOUND, None),
    "pictures": (Outcome.TIMED_OUT, Reason.TRAJECTORY_TIMEOUT, "no answer within 300 s"),
    "repair": (Outcome.REDUNDANT, Reason.GROUP_COMPLETE, None),
}


def ended_early(step: int, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    """Yield attempts of a step that came to nothing, each for its reason."""
    for domain in domains_of(step):
        outcome, reason, error = _ENDS[domain]
        slot = DemoSlot(step, domain, GROUP_SIZE)
        chain = slot.chain(tokenizer)
        chain.turn("Are you there?", "I am not", finish=FinishReason.ABORT)
        yield slot.trajectory(chain, None, outcome=outcome, reason=reason, error=error)
