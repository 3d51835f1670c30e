"""Tasks, the attempts at them, and the batches that are trained on.

Token positions: a trajectory is one append-only chain of tokens. `start` and `end` of a turn are
offsets into it; observation tokens come first in a turn, generated (action) tokens after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from rollart_flow.types.events import TRAINABLE, Outcome, Reason, Split
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.generation import Sampling
from rollart_flow.types.images import Image
from rollart_flow.types.pickling import pickled_by_values
from rollart_flow.types.verdicts import Verdict


@pickled_by_values
@dataclass(frozen=True, slots=True)
class Task:
    """One problem of one domain. `payload` is JSON and is all that the environment needs."""

    task_id: str
    domain: str
    payload: str = "{}"


@pickled_by_values
@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one task, as handed from the scheduler to an EnvManager.

    `attempt` is the index within the group; a replacement takes the next one, a retry of the same
    attempt by Ray keeps the `trajectory_id`.
    """

    trajectory_id: str
    group_id: str
    task: Task
    attempt: int
    env_seed: int
    sampling: Sampling = field(default_factory=Sampling)
    split: Split = Split.TRAIN

    @property
    def episode_id(self) -> str:
        """The episode; equal to the trajectory unless histories are rewritten."""
        return self.trajectory_id


def branch_id(trajectory_id: str, branch: int) -> str:
    """Return the `trajectory_id` of a branch of an attempt; branch 0 has the attempt's."""
    return trajectory_id if branch == 0 else f"{trajectory_id}.{branch}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation and the action that answered it. Offsets are into the token chain."""

    start: int
    end: int
    observation: str
    action: str
    reward: float
    """The environment's reward for the action."""
    generate_s: float
    step_s: float
    hardware: str
    worker: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt, whatever its outcome: a row of `trajectories` without `seq` and `committed_at`,
    and what its rows of `verdicts` and `exchanges` say.

    Token lists are aligned: on observation tokens `action_mask` is False, `logprobs` 0.0 and
    `token_versions` -1.
    """

    trajectory_id: str
    episode_id: str
    group_id: str
    task_id: str
    domain: str
    attempt: int
    outcome: Outcome
    task: str
    """JSON payload of the task."""
    sampling: Sampling
    split: Split
    env_seed: int
    env_version: str
    created_at: datetime
    finished_at: datetime
    reset_s: float
    reason: Reason | None = None
    error: str | None = None
    policy_version_start: int | None = None
    """Version of the first generated token; None if no token was generated."""
    policy_version_end: int | None = None
    token_ids: tuple[int, ...] = ()
    action_mask: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()
    token_versions: tuple[int, ...] = ()
    kept_token_ids: tuple[tuple[int, ...], ...] | None = None
    turns: tuple[Turn, ...] = ()
    solved: bool | None = None
    """info["success"] of the environment, or None if it does not report one."""
    reward: float | None = None
    reward_parts: Mapping[str, float] | None = None
    scored_at: datetime | None = None
    prefill_workers: tuple[str, ...] | None = None
    """Prefill workers that computed the KV cache of the prompt, one for each turn; empty for a turn
    that had none. None if no turn had one."""
    messages: str | None = None
    """Messages of the conversation as a JSON list, each with the number of its turn; None if the
    environment shows text and takes text."""
    tools: str | None = None
    """Tools that the policy could call, as a JSON list; None if the environment takes text."""
    tool_calls: int | None = None
    """Number of tool calls; None without messages."""
    tool_errors: int | None = None
    """Number of tool calls that could not be made; None without messages."""
    rewritten_at: int | None = None
    """First position at which rendering all messages again gives another token; None if none does,
    or without messages."""
    branch: int = 0
    """Number within the episode, in the order in which its branches began."""
    parent: str | None = None
    """`trajectory_id` of the branch that this one came from; None for branch 0."""
    shared_tokens: int = 0
    """Leading tokens that are those of the parent, with `action_mask` False."""
    images: tuple[Image, ...] | None = None
    """Images whose placeholders the chain has, in their order; None without any. A row holds their
    names, and the run their files."""
    diff: str | None = None
    """Change of files that the attempt left, as a unified diff; None if the environment gives none,
    and in branches other than 0, as are the next three fields."""
    verifier: str | None = None
    """Digest of the verifier that the environment judged the attempt with."""
    suspicions: tuple[str, ...] | None = None
    """Signs of an attempt at reward without the task, each as "kind: detail"."""
    verdicts: tuple[Verdict, ...] | None = None
    """Verdicts of the environment. They and those of the reward are rows of the table `verdicts`,
    not columns."""
    reward_verdicts: tuple[Verdict, ...] | None = None
    """Verdicts of the reward function; None if it gave none."""
    exchanges: tuple[StoredExchange, ...] | None = None
    """Calls of a captured agent in the order of their arrival, which are rows of the table
    `exchanges`; None without such an agent, and in branches other than 0."""

    @property
    def delivered_fraction(self) -> float | None:
        """Fraction of the sampled tokens of a captured agent that training can have.

        The calls count, over all branches of the attempt: None if they sampled nothing, without
        such an agent, and in branches other than 0.
        """
        calls = self.exchanges or ()
        sampled = sum(call.sampled_tokens for call in calls)
        if not sampled or self.branch:
            return None
        trains = self.split is Split.TRAIN and self.outcome in TRAINABLE and self.reward is not None
        return sum(call.trained_tokens for call in calls) / sampled if trains else 0.0


def unscored(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory without its reward."""
    return replace(trajectory, reward=None, reward_parts=None, scored_at=None, reward_verdicts=None)


def solved_by(success: bool | None, reward: float | None) -> bool | None:
    """Whether an attempt solved its task.

    The success that the environment reports counts, or else a reward of at least 1; the result is
    None if neither is known.
    """
    if success is not None or reward is None:
        return success
    return reward >= 1


@pickled_by_values
@dataclass(frozen=True, slots=True)
class Sample:
    """The control plane's summary of a committed trajectory, without token data."""

    trajectory_id: str
    group_id: str
    domain: str
    attempt: int
    outcome: Outcome
    policy_version_start: int | None
    policy_version_end: int | None
    scored: bool
    tokens: int
    error: str | None = None
    task_id: str = ""
    solved: bool | None = None
    """Whether the attempt solved its task, by `solved_by`."""

    @property
    def trainable(self) -> bool:
        """Whether it was completed or truncated, is scored, and has a generated token."""
        return self.outcome in TRAINABLE and self.scored and self.policy_version_start is not None

    @property
    def filtered(self) -> bool:
        """Whether a filter refused it before reward: completed or truncated, but not scored."""
        return self.outcome in TRAINABLE and not self.scored

    @classmethod
    def of(cls, trajectory: Trajectory, *, scored: bool, tokens: int) -> "Sample":
        """Summarize a trajectory.

        Args:
            trajectory: a trajectory of any outcome.
            scored: whether it has its reward.
            tokens: length of its token chain; in a simulation, each id stands for many tokens.
        """
        return cls(
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            domain=trajectory.domain,
            attempt=trajectory.attempt,
            outcome=trajectory.outcome,
            policy_version_start=trajectory.policy_version_start,
            policy_version_end=trajectory.policy_version_end,
            scored=scored,
            tokens=tokens,
            error=trajectory.error,
            task_id=trajectory.task_id,
            solved=solved_by(trajectory.solved, trajectory.reward),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The trajectories of one training step, by id; the token data stays in the buffer.

    `trajectory_ids` is in training order, group by group.
    """

    step: int
    policy_version: int
    """n: the version that the engines served when the batch was formed."""
    trained_version: int
    """step - 1: the weights that the step starts from."""
    trajectory_ids: tuple[str, ...]
    group_ids: tuple[str, ...]
    """Aligned with `trajectory_ids`."""
    staleness: tuple[int, ...]
    """policy_version - policy_version_start, aligned with `trajectory_ids`."""

    @property
    def lag(self) -> tuple[int, ...]:
        """trained_version - policy_version_start, aligned with `trajectory_ids`."""
        served_behind = self.trained_version - self.policy_version
        return tuple(staleness + served_behind for staleness in self.staleness)
