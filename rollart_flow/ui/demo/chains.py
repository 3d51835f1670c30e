"""Chains of tokens of the demonstration run: texts become tokens, logprobs and turns.

Every value follows from the texts and the name of the chain. The token ids are those of the tiny
tokenizer that the run has as its policy's, so that a reader can spell them.
"""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tokenizers import Tokenizer

from rollart_flow.types import FinishReason, Turn

SEEN = -1
"""Policy version of a token that was not sampled."""


@dataclass
class DemoChain:
    """A chain that grows turn by turn.

    `name` is what the random values follow from, `versions` the policy version of the first
    sampled token and that of the last ones: a chain of two versions changes it in its last turn.
    """

    tokenizer: Tokenizer
    name: str
    versions: tuple[int, int]
    worker: str = "generation-0"
    hardware: str = "H20"
    delivered: bool = True
    """Whether its sampled tokens can be trained on."""
    token_ids: list[int] = field(default_factory=list)
    token_versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    shared: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.name)

    def fork(self, name: str, keep: int, *, delivered: bool = True) -> "DemoChain":
        """Return a chain that begins with the first `keep` tokens of this one, none its own."""
        return DemoChain(
            self.tokenizer, name, self.versions, self.worker, self.hardware, delivered,
            self.token_ids[:keep], [SEEN] * keep, [0.0] * keep, shared=keep,
        )  # fmt: skip

    def turn(
        self,
        shown: str,
        said: str,
        *,
        reward: float = 0.0,
        last: bool = False,
        finish: FinishReason = FinishReason.STOP,
    ) -> Turn:
        """Add a turn: what was shown and what was said, as text and as tokens.

        Args:
            shown: observation, whatever is in it.
            said: action.
            reward: what the environment gave for the action.
            last: whether the policy was updated in the middle of the action.
            finish: why the generation ended.
        """
        start = len(self.token_ids)
        self._add(f"<user>{shown}<assistant>", None)
        self._add(said + ("<eos>" if finish is FinishReason.STOP else ""), last)
        generated = len(said) * 0.004 + self.random.random() * 0.8
        turn = Turn(
            start=start, end=len(self.token_ids), observation=shown, action=said, reward=reward,
            generate_s=round(0.2 + generated, 3), step_s=round(0.05 + self.random.random() / 2, 3),
            hardware=self.hardware, worker=self.worker, finish_reason=str(finish),
        )  # fmt: skip
        self.turns.append(turn)
        return turn

    def _add(self, text: str, last: bool | None) -> None:
        """Add the tokens of a text: seen if `last` is None, else sampled."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        first, end = self.versions
        half = len(ids) // 2
        for index, token in enumerate(ids):
            if last is None:
                version, logprob = SEEN, 0.0
            else:
                version = end if last and index >= half else first
                logprob = -round(self.random.expovariate(3.0), 4)
            self.token_ids.append(token)
            self.token_versions.append(version)
            self.logprobs.append(max(logprob, -math.log(1e6)))

    @property
    def seconds(self) -> float:
        """Seconds of all turns [s]."""
        return sum(turn.generate_s + turn.step_s for turn in self.turns)

    def columns(self) -> dict[str, Any]:
        """Return the fields of `Trajectory` that the chain fills in."""
        sampled = [version for version in self.token_versions if version != SEEN]
        trained = sampled if self.delivered else []
        return {
            "token_ids": tuple(self.token_ids),
            "action_mask": tuple(v != SEEN and self.delivered for v in self.token_versions),
            "logprobs": tuple(self.logprobs),
            "token_versions": tuple(self.token_versions),
            "policy_version_start": trained[0] if trained else None,
            "policy_version_end": trained[-1] if trained else None,
            "turns": tuple(self.turns),
            "shared_tokens": self.shared,
        }
