"""Recorder: the append-only token chain of an attempt, divided into turns.

The invariant (token fidelity): generated tokens are recorded exactly as sampled, with their
logprobs and versions; observation tokens have mask False, logprob 0.0 and version -1; all lists
stay aligned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.types import Assignment, FinishReason, Generation, Image, Trajectory, Turn

V = TypeVar("V")


@dataclass(slots=True)
class _Recorded:
    """A turn: observation, action, and the answer of the environment."""

    start: int
    action_start: int
    """Index of the first generated token of the turn."""
    observation: str
    action: str = ""
    generate_s: float = 0.0
    hardware: str = ""
    worker: str = ""
    prefilled_by: str = ""
    finish_reason: FinishReason = FinishReason.ABORT
    end: int = 0
    reward: float = 0.0
    step_s: float = 0.0

    def turn(self) -> Turn:
        """Return the turn of the trajectory."""
        return Turn(
            start=self.start,
            end=self.end,
            observation=self.observation,
            action=self.action,
            reward=self.reward,
            generate_s=self.generate_s,
            step_s=self.step_s,
            hardware=self.hardware,
            worker=self.worker,
            finish_reason=self.finish_reason,
        )


class Recorder:
    """Tokens and turns of one attempt.

    The data of generated tokens is kept separately during the attempt, and aligned with the chain
    once, at the end.
    """

    __slots__ = ("_kept", "_logprobs", "_turn", "_turns", "_versions", "images", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        """The chain so far."""
        self.images: tuple[Image, ...] = ()
        """Images whose placeholders the chain has, in their order."""
        self._logprobs: list[float] = []
        """Log-probabilities by generated token; the next two lists are indexed alike."""
        self._versions: list[int] = []
        self._kept: list[tuple[int, ...]] = []
        """Kept token ids, only for sampling that truncates."""
        self._turns: list[_Recorded] = []
        self._turn: _Recorded | None = None
        """Current turn, until it has ended."""

    def __len__(self) -> int:
        """Number of tokens in the chain."""
        return len(self.token_ids)

    @property
    def ended(self) -> bool:
        """Whether the last action ended without reaching its length limit."""
        return not self._turns or self._turns[-1].finish_reason != FinishReason.LENGTH

    def observe(
        self, observation: str, token_ids: tuple[int, ...], images: tuple[Image, ...] = ()
    ) -> None:
        """Begin a turn with an observation."""
        start = len(self)
        self._turn = _Recorded(start, start + len(token_ids), observation)
        self._turns.append(self._turn)
        self.token_ids += token_ids
        self.images += images

    def act(self, generation: Generation, action: str, generate_s: float) -> None:
        """Add the action of the turn; `action` is its decoded text."""
        turn = self._turn
        if turn is None:
            raise ValueError("an action needs an observation before it")
        self.token_ids += generation.token_ids
        self._logprobs += generation.logprobs
        self._versions += generation.versions
        self._kept += generation.kept
        turn.action = action
        turn.generate_s = generate_s
        turn.hardware = generation.hardware
        turn.worker = generation.worker
        turn.prefilled_by = generation.prefilled_by
        turn.finish_reason = generation.finish_reason

    def end_turn(self, reward: float = 0.0, step_s: float = 0.0) -> None:
        """End the turn with the environment's answer, or without one if there is none."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.end = len(self)
            turn.reward = reward
            turn.step_s = step_s

    def trajectory(
        self,
        assignment: Assignment,
        ending: AttemptResult,
        *,
        created_at: datetime,
        finished_at: datetime,
        reset_s: float,
        env_version: str,
        solved: bool | None,
        conversation: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """Return the attempt as a trajectory without a reward.

        `conversation` has the fields of a trajectory with messages.
        """
        self.end_turn()
        task = assignment.task
        versions = self._versions
        prefilled_by = tuple(turn.prefilled_by for turn in self._turns)
        return Trajectory(
            trajectory_id=assignment.trajectory_id,
            episode_id=assignment.episode_id,
            group_id=assignment.group_id,
            task_id=task.task_id,
            domain=task.domain,
            attempt=assignment.attempt,
            outcome=ending.outcome,
            task=task.payload,
            sampling=assignment.sampling,
            split=assignment.split,
            env_seed=assignment.env_seed,
            env_version=env_version,
            created_at=created_at,
            finished_at=finished_at,
            reset_s=reset_s,
            reason=ending.reason,
            error=ending.error,
            policy_version_start=versions[0] if versions else None,
            policy_version_end=versions[-1] if versions else None,
            token_ids=tuple(self.token_ids),
            action_mask=self._along([True] * len(versions), observed=False),
            logprobs=self._along(self._logprobs, 0.0),
            token_versions=self._along(versions, -1),
            kept_token_ids=tuple(self._kept) if assignment.sampling.truncates else None,
            turns=tuple(turn.turn() for turn in self._turns),
            solved=solved,
            prefill_workers=prefilled_by if any(prefilled_by) else None,
            images=self.images or None,
            **(conversation or {}),
        )

    def _along(self, generated: Sequence[V], observed: V) -> tuple[V, ...]:
        """Align values of generated tokens with the chain; observation tokens get one value."""
        laid: list[V] = []
        taken = 0
        for turn in self._turns:
            laid += [observed] * (turn.action_start - turn.start)
            count = turn.end - turn.action_start
            laid += generated[taken : taken + count]
            taken += count
        return tuple(laid)
