"""Recorder: the append-only token chain of a branch, divided into turns.

The invariant (token fidelity): generated tokens are recorded exactly as sampled, with their
logprobs and versions; all other tokens have mask False, logprob 0.0 and version -1; all lists stay
aligned.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from rollart_flow.control.rollout.chain_turn import ChainTurn, Withheld
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.types import (
    TRAINABLE,
    Action,
    Assignment,
    FinishReason,
    Generation,
    Image,
    Observation,
    Trajectory,
)
from rollart_flow.types.messages import images_of
from rollart_flow.types.token_ids import TokenBuffer, TokenIds

V = TypeVar("V")


class Recorder:
    """Tokens and turns of one branch.

    The data of generated tokens is kept separately during the attempt, and aligned with the chain
    once, at the end.

    Args:
        before: turns that other branches have sampled, and that this one shows the policy.
        chain: the chain so far, which the recorder extends; None if it has no tokens.
        shared: number of leading tokens that are those of the branch that this one came from.
        images: images of `before`; None: they are collected.
    """

    __slots__ = (
        "_chain", "_kept", "_logprobs", "_turn", "_versions", "before", "images", "own",
        "shared_tokens", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        before: Sequence[ChainTurn] = (),
        chain: TokenBuffer | None = None,
        shared: int = 0,
        images: tuple[Image, ...] | None = None,
    ) -> None:
        self.before = before
        self.shared_tokens = shared
        self._chain = TokenBuffer() if chain is None else chain
        if images is None:
            images = tuple(image for turn in before for image in images_of(turn.observation))
        self.images = images
        """Images whose placeholders the chain has, in their order."""
        self.own: list[ChainTurn] = []
        """Turns whose actions are sampled here."""
        self._logprobs: list[float] = []
        """Log-probabilities by generated token; the next two lists are indexed alike."""
        self._versions: list[int] = []
        self._kept: list[tuple[int, ...]] = []
        """Kept token ids, only for sampling that truncates."""
        self._turn: ChainTurn | None = None
        """Current turn, until it has ended."""
        self.withheld: Withheld | None = None
        """Why the sampled tokens are not trained on; None if they are."""

    def __len__(self) -> int:
        """Number of tokens in the chain."""
        return len(self._chain)

    @property
    def token_ids(self) -> TokenIds:
        """The chain so far, without a copy."""
        return self._chain.read()

    @property
    def settled_tokens(self) -> int:
        """Number of leading tokens that `withdraw` cannot take back."""
        turn = self._turn
        return len(self) if turn is None or turn.action is not None else turn.start

    @property
    def sampled(self) -> bool:
        """Whether the chain has a token that was sampled here."""
        return bool(self._versions)

    @property
    def turns(self) -> list[ChainTurn]:
        """All turns that the policy sees."""
        return [*self.before, *self.own]

    @property
    def last(self) -> ChainTurn | None:
        """The last turn that the policy sees; None at the beginning."""
        if self.own:
            return self.own[-1]
        return self.before[-1] if self.before else None

    @property
    def ended(self) -> bool:
        """Whether the last action ended without reaching its length limit."""
        last = self.own[-1] if self.own else self.last
        return last is None or last.finish_reason != FinishReason.LENGTH

    def observe(
        self, observation: Observation, token_ids: Sequence[int], number: int | None = None
    ) -> None:
        """Begin a turn with an observation.

        Args:
            observation: what the environment shows.
            token_ids: its tokens, after those of the chain.
            number: number of the turn in the attempt; None: that of the turn in the chain.
        """
        start = len(self)
        self._chain.extend(token_ids)
        self.begin(start, observation, len(self.own) if number is None else number)

    def begin(self, start: int, observation: Observation, number: int) -> None:
        """Begin a turn with an observation whose tokens the chain ends with.

        Args:
            start: index of its first token.
            observation: what the environment shows.
            number: number of the turn in the attempt.
        """
        self._turn = ChainTurn(number, start, len(self), observation)
        self.own.append(self._turn)
        if not isinstance(observation, str):
            self.images += images_of(observation)

    def act(self, generation: Generation, action: Action, generate_s: float) -> ChainTurn:
        """Add the action of the turn, which its tokens were parsed to; return the turn."""
        turn = self._turn
        if turn is None:
            raise ValueError("an action needs an observation before it")
        self._chain.extend(generation.token_ids)
        self._logprobs += generation.logprobs
        self._versions += generation.versions
        self._kept += generation.kept
        turn.action = action
        turn.generate_s = generate_s
        turn.hardware = generation.hardware
        turn.worker = generation.worker
        turn.prefilled_by = generation.prefilled_by
        turn.finish_reason = generation.finish_reason
        turn.end = len(self)
        return turn

    def withdraw(self) -> None:
        """Take back the observation that no action has answered, if there is one."""
        turn, self._turn = self._turn, None
        if turn is None or turn.action is not None:
            return
        self.own.pop()
        self._chain.cut(turn.start)
        if shown := images_of(turn.observation):
            self.images = self.images[: -len(shown)]

    def part(self, first: int, after: int) -> "Recorder":
        """Return the record of some of the own turns, in which the earlier ones are another's.

        Args:
            first: index of the first turn among `own`.
            after: index after the last one.
        """
        counts = [turn.end - turn.action_start for turn in self.own]
        start, end = sum(counts[:first]), sum(counts[:after])
        length = self.own[after - 1].end
        before, own = (*self.before, *self.own[:first]), self.own[first:after]
        shared = self.own[first].start if first else self.shared_tokens
        later = [image for turn in self.own[after:] for image in images_of(turn.observation)]
        chain = TokenBuffer(self.token_ids.prefix(length))
        made = Recorder(before, chain, shared, self.images[: len(self.images) - len(later)])
        made.own = own
        made._logprobs, made._versions = self._logprobs[start:end], self._versions[start:end]
        made._kept = self._kept[start:end]
        return made

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
        columns: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """Return the branch as a trajectory without a reward.

        `columns` has the fields of a trajectory with messages, and of one with a parent.
        """
        self.end_turn()
        task, withheld = assignment.task, self.withheld
        versions = self._versions
        trained = versions if withheld is None else ()
        trains = ending.outcome in TRAINABLE  # what ends another attempt says more
        prefilled_by = tuple(turn.prefilled_by for turn in self.own)
        branch = {"trajectory_id": assignment.trajectory_id, **(columns or {})}
        return Trajectory(
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
            reason=ending.reason if withheld is None or not trains else withheld.reason,
            error=ending.error if withheld is None or not trains else withheld.error,
            policy_version_start=trained[0] if trained else None,
            policy_version_end=trained[-1] if trained else None,
            token_ids=tuple(self.token_ids),
            action_mask=self._along([withheld is None] * len(versions), observed=False),
            logprobs=self._along(self._logprobs, 0.0),
            token_versions=self._along(versions, -1),
            kept_token_ids=self._kept_ids(assignment),
            turns=tuple(turn.turn() for turn in self.own),
            solved=solved,
            prefill_workers=prefilled_by if any(prefilled_by) else None,
            images=self.images or None,
            **branch,
        )

    def _kept_ids(self, assignment: Assignment) -> tuple[tuple[int, ...], ...] | None:
        """Return the kept token ids of each trained token; None if the sampling keeps all."""
        if not assignment.sampling.truncates:
            return None
        return tuple(self._kept) if self.withheld is None else ()

    def _along(self, generated: Sequence[V], observed: V) -> tuple[V, ...]:
        """Align values of generated tokens with the chain; observation tokens get one value."""
        laid: list[V] = [observed] * self.shared_tokens
        taken = 0
        for turn in self.own:
            laid += [observed] * (turn.action_start - turn.start)
            count = turn.end - turn.action_start
            laid += generated[taken : taken + count]
            taken += count
        return tuple(laid)
