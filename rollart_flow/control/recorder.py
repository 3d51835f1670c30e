"""What an attempt has been so far: one append-only chain of tokens, cut into turns.

The invariant (token fidelity): generated tokens enter exactly as the engine drew them, with their
logprobs and versions; observation tokens have mask False, logprob 0.0 and version -1; all lists
stay aligned.
"""

from dataclasses import dataclass
from datetime import datetime

from rollart_flow.control.interrupts import Ending
from rollart_flow.types import Assignment, FinishReason, Generation, Trajectory, Turn


@dataclass(slots=True)
class _OpenTurn:
    """A turn whose action has not been answered."""

    start: int
    observation: str
    action: str = ""
    generate_s: float = 0.0
    hardware: str = ""
    worker: str = ""
    prefilled_by: str = ""
    finish_reason: FinishReason = FinishReason.ABORT


class Recorder:
    """Tokens and turns of one attempt."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.action_mask: list[bool] = []
        self.logprobs: list[float] = []
        self.token_versions: list[int] = []
        self.kept: list[tuple[int, ...]] = []
        """Per generated token, where the sampling truncates."""
        self.turns: list[Turn] = []
        self._prefilled_by: list[str] = []
        """By turn."""
        self._turn: _OpenTurn | None = None
        self._first: int | None = None
        self._last: int | None = None

    def __len__(self) -> int:
        """Tokens in the chain."""
        return len(self.token_ids)

    @property
    def ended(self) -> bool:
        """Whether the last action ended with a stop token, rather than where its room did."""
        return not self.turns or self.turns[-1].finish_reason != FinishReason.LENGTH

    def observe(self, observation: str, token_ids: tuple[int, ...]) -> None:
        """Begin a turn with an observation."""
        self._turn = _OpenTurn(len(self), observation)
        count = len(token_ids)
        self.token_ids += token_ids
        self.action_mask += [False] * count
        self.logprobs += [0.0] * count
        self.token_versions += [-1] * count

    def act(self, generation: Generation, action: str, generate_s: float) -> None:
        """Add the action of the turn; `action` is its decoded text."""
        if self._turn is None:
            raise ValueError("an action needs an observation before it")
        self.token_ids += generation.token_ids
        self.action_mask += [True] * len(generation.token_ids)
        self.logprobs += generation.logprobs
        self.token_versions += generation.versions
        self.kept += generation.kept
        if generation.versions:
            self._first = generation.versions[0] if self._first is None else self._first
            self._last = generation.versions[-1]
        self._turn.action = action
        self._turn.generate_s = generate_s
        self._turn.hardware = generation.hardware
        self._turn.worker = generation.worker
        self._turn.prefilled_by = generation.prefilled_by
        self._turn.finish_reason = generation.finish_reason

    def end_turn(self, reward: float = 0.0, step_s: float = 0.0) -> None:
        """Close the turn with the environment's answer, or without one where none came."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._prefilled_by.append(turn.prefilled_by)
            self.turns.append(
                Turn(
                    start=turn.start,
                    end=len(self),
                    observation=turn.observation,
                    action=turn.action,
                    reward=reward,
                    generate_s=turn.generate_s,
                    step_s=step_s,
                    hardware=turn.hardware,
                    worker=turn.worker,
                    finish_reason=turn.finish_reason,
                )
            )

    def trajectory(
        self,
        assignment: Assignment,
        ending: Ending,
        *,
        created_at: datetime,
        finished_at: datetime,
        reset_s: float,
        env_version: str,
        solved: bool | None,
    ) -> Trajectory:
        """The attempt as a trajectory without a reward."""
        self.end_turn()
        task = assignment.task
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
            policy_version_start=self._first,
            policy_version_end=self._last,
            token_ids=tuple(self.token_ids),
            action_mask=tuple(self.action_mask),
            logprobs=tuple(self.logprobs),
            token_versions=tuple(self.token_versions),
            kept_token_ids=tuple(self.kept) if assignment.sampling.truncates else None,
            turns=tuple(self.turns),
            solved=solved,
            prefill_workers=tuple(self._prefilled_by) if any(self._prefilled_by) else None,
        )
