"""`Algorithm`: a loss, an estimator of advantages and their settings, for `train`.

The recipes (`grpo`, ...) build it with the defaults of a paper; every part can be replaced. The
invariant: every setting is checked when a pipeline is built, none is ignored, and the difference
between the behavior policy and the trained one is corrected for once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from rollart_flow.algorithms.base import (
    COMPUTED,
    PAIR,
    PREFERRED,
    TARGETS,
    Advantages,
    Correction,
    Estimator,
    Exact,
    Floats,
    Loss,
    TokenLoss,
    Tokens,
)
from rollart_flow.algorithms.parts.aggregation import (
    Aggregation,
    Decayed,
    aggregation_weights,
    check_aggregation,
)
from rollart_flow.algorithms.parts.critic import Critic
from rollart_flow.algorithms.parts.divergence import KLEstimator, divergence
from rollart_flow.errors import SettingsError
from rollart_flow.fields import NotNegative, Within
from rollart_flow.validation import CheckedSettings, check_kind

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from rollart_flow.algorithms.parts.branches import BranchWeight


@dataclass(frozen=True, slots=True)
class Algorithm(CheckedSettings):
    """One policy gradient algorithm, with all of its parts."""

    name: str
    """Name of its recipe, for plans and records."""
    loss: Loss
    advantage: Estimator
    aggregation: Aggregation = "token"
    """Mean of the token losses, see `parts.aggregation`."""
    kl: Annotated[float, Within(0)] = 0.0
    """Factor of the divergence from the reference policy; 0 needs no reference."""
    entropy: Annotated[float, Within(0)] = 0.0
    """Factor of the entropy bonus; 0 gives none."""
    kl_estimator: KLEstimator = "k3"
    """Estimator of the divergence, see `parts.divergence`."""
    reference: NotNegative = 0
    """Version of the policy that is the reference. If it is later than the version that the run
    starts from, there is no penalty until the run reaches it."""
    correction: Correction | None = None
    """Factor in place of pi_old / mu. None means the exact weight for a loss with a ratio to
    pi_old, and no factor for other losses."""
    critic: Critic | None = None
    """Value head that the estimator needs; None if it needs none."""
    staleness: Decayed | None = None
    """Factor on the loss of a stale trajectory; None: stale trajectories count in full."""
    constant_tokens: int = 0
    """Divisor of the aggregation `constant` [tokens]; 0 with the others."""
    teacher: str | None = None
    """Folder of another policy that is the reference; None: a version of the run's own."""

    def __post_init__(self) -> None:
        check_kind("loss", self.loss, Loss)
        check_kind("advantage", self.advantage, Estimator)
        check_kind("correction", self.correction, Correction, optional=True)
        check_kind("critic", self.critic, Critic, optional=True)
        check_kind("staleness", self.staleness, Decayed, optional=True)
        CheckedSettings.__post_init__(self)
        check_aggregation(self.aggregation, self.constant_tokens)
        if self.kl == 0 and (self.kl_estimator != "k3" or self.reference != 0):
            raise SettingsError(f"{self.name}: kl_estimator and reference need kl above 0")
        if self.correction is not None and self.loss.anchor == "behavior":
            raise SettingsError(
                f"{self.name}: correction={self.correction} would correct twice, since "
                f"{type(self.loss).__name__} reaches the behavior policy by itself; take one of "
                "them, or a ratio_to='old' where the loss has it"
            )
        if self.teacher is not None and (self.reference != 0 or not self.needs_reference):
            raise SettingsError(
                f"{self.name}: teacher is the reference of a penalty (kl above 0) or of distill, "
                "in place of reference"
            )
        if self.advantage.needs_reference and self.reference != 0:
            raise SettingsError(
                f"{self.name}: reference={self.reference} is of a penalty (kl); "
                f"{type(self.advantage).__name__} needs a reference from the first step on, which "
                "is the policy that the run starts from"
            )
        if self.advantage.needs_values and self.critic is None:
            raise SettingsError(
                f"{self.name}: {type(self.advantage).__name__} needs values; give critic=Critic()"
            )
        if self.critic is not None and not self.advantage.needs_values:
            raise SettingsError(
                f"{self.name}: nothing trains the critic, since {type(self.advantage).__name__} "
                "needs no values; leave it out"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether logprobs of a reference policy are needed from the reference version on."""
        if self.kl > 0 or self.advantage.needs_reference:
            return True
        return "reference_logprobs" in self.loss.needs

    @property
    def reads_behavior(self) -> bool:
        """Whether it reads the logprobs with which tokens were sampled."""
        return self.loss.anchor == "behavior" or self.factor is not None

    @property
    def factor(self) -> Correction | None:
        """Correction that multiplies every token's loss; None if there is none."""
        if self.correction is None and self.loss.anchor == "old":
            return Exact()
        return self.correction

    @property
    def needs(self) -> frozenset[str]:
        """Names in `Tokens` that loss and correction need, without those of the reference, and
        columns of `batches` that the estimator needs."""
        return self._read_in_passes | self.advantage.reads

    @property
    def _read_in_passes(self) -> frozenset[str]:
        """Names in `Tokens` that loss and correction need."""
        factor = self.factor
        return self.loss.needs | (frozenset() if factor is None else factor.needs)

    @property
    def needs_pairs(self) -> bool:
        """Whether it compares the two episodes of a pair, one preferred and one rejected."""
        return PAIR in self.needs

    @property
    def needs_preferences(self) -> bool:
        """Whether it needs to know which episodes are preferred and which are rejected."""
        return self.needs_pairs or PREFERRED in self.needs

    @property
    def compares_groups(self) -> bool:
        """Whether an advantage depends on the other episodes of a group."""
        return self.advantage.compares_groups

    @property
    def columns(self) -> frozenset[str]:
        """Columns of a batch that loss, correction and critic read, by name."""
        critic = frozenset() if self.critic is None else frozenset({TARGETS})
        return (self._read_in_passes - COMPUTED) | critic

    def advantages(self, batch: pa.Table) -> Advantages:
        """Estimate the advantages of a batch; an episode of several rows counts once."""
        from rollart_flow.algorithms.advantages.columns import action_counts
        from rollart_flow.algorithms.parts.branches import in_rows
        from rollart_flow.episode_rows import as_episodes, starts_of

        starts = starts_of(batch)
        found = self.advantage(as_episodes(batch, starts))
        if len(starts) == batch.num_rows + 1:
            return found
        return in_rows(found, starts, action_counts(batch).astype("int64"))

    def weights(self, batch: pa.Table, branch_weight: BranchWeight = "split") -> Floats:
        """Return the factor on each row's loss [rows]: aggregation and staleness."""
        import numpy as np

        from rollart_flow.episode_rows import as_episodes, starts_of

        starts = starts_of(batch)
        split = branch_weight == "split"
        weighed = as_episodes(batch, starts) if split else batch
        weights = aggregation_weights(weighed, self.aggregation, self.constant_tokens)
        if split:
            weights = np.repeat(weights, np.diff(starts))
        return weights if self.staleness is None else weights * self.staleness(batch)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Loss of each action token, corrected, with its divergence from the reference policy.

        The divergence is left out before the run reaches the reference version (`reference`).
        """
        found = self.loss(tokens)
        loss: torch.Tensor = found.loss
        if (factor := self.factor) is not None:
            loss = loss * factor(tokens)
        if self.kl > 0 and not (self.reference > 0 and tokens.reference_logprobs is None):
            loss = loss + self.kl * divergence(tokens, self.kl_estimator)
        return replace(found, loss=loss)
