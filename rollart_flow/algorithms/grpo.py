"""Group Relative Policy Optimization with the clipped ratio against the behavior policy.

    A_i  = (r_i - mean(r)) / (std(r) + eps)     over the attempts i of one group
    rho  = pi_theta / mu                        mu: behavior logprobs as stored
    loss = -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A) + kl (e^d - d - 1)
           d = log pi_ref - log pi_theta

Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3 (group advantage, clipped objective, KL
in the loss); DAPO (2503.14476) for the higher upper clip and the mean over all tokens; the KL
estimate is Schulman's k3. The ratio is taken to the policy that drew the token, not to the policy
at the start of the update: one ratio corrects both for several updates and for staleness.

The invariant: a group whose rewards are all equal teaches exactly nothing, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.base import Advantages, Algorithm, TokenLoss
from rollart_flow.algorithms.checks import check_choice, check_number
from rollart_flow.errors import TrainerError

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token", "sequence", "domain"]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class GRPO(Algorithm):
    """Settings of GRPO; see `grpo`."""

    clip: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    entropy: float = 0.0
    aggregation: Aggregation = "token"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_number("grpo.clip", self.clip, low=0, high=1, open_low=True)
        check_number("grpo.clip_high", self.clip_high, low=0, open_low=True)
        check_number("grpo.kl", self.kl, low=0)
        check_number("grpo.entropy", self.entropy, low=0)
        check_choice("grpo.aggregation", self.aggregation, get_args(Aggregation))
        check_number("grpo.eps", self.eps, low=0, open_low=True)

    @property
    def kl_coefficient(self) -> float:
        """Factor of the divergence from the reference policy."""
        return self.kl

    @property
    def entropy_coefficient(self) -> float:
        """Factor of the entropy bonus."""
        return self.entropy

    def advantages(self, batch: pa.Table) -> Advantages:
        """Rewards normalized within each group. See `Algorithm.advantages`.

        The standard deviation is that of the group itself (divided by G, not G - 1).

        Raises:
            TrainerError: a trajectory has no reward or no action token.
        """
        rewards = _rewards(batch)
        group_ids = pc.dictionary_encode(batch["group_id"].combine_chunks())
        group_of = group_ids.indices.to_numpy(zero_copy_only=False)
        values = np.zeros(len(rewards))
        constant = 0
        for group in range(len(group_ids.dictionary)):
            members = group_of == group
            of_group = rewards[members]
            if of_group.min() == of_group.max():
                constant += 1  # exactly zero, though the mean may differ by a rounding
                continue
            values[members] = (of_group - of_group.mean()) / (of_group.std() + self.eps)
        return Advantages(
            values=tuple(np.array([value], dtype=np.float32) for value in values),
            weights=tuple(float(weight) for weight in self._weights(batch)),
            zero_variance_groups=constant,
        )

    def _weights(self, batch: pa.Table) -> Floats:
        """Factors that make the trainer's mean over all action tokens the chosen aggregation."""
        tokens = _action_tokens(batch)
        if self.aggregation == "token":
            return np.ones_like(tokens)
        if self.aggregation == "sequence":
            return np.asarray(tokens.mean() / tokens)
        _, domain_of = np.unique(batch["domain"].to_pylist(), return_inverse=True)
        of_domain = np.bincount(domain_of, weights=tokens)
        return np.asarray(tokens.sum() / len(of_domain) / of_domain[domain_of])

    def token_loss(
        self,
        logprobs: torch.Tensor,
        behavior_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        reference_logprobs: torch.Tensor | None = None,
    ) -> TokenLoss:
        """Clipped surrogate and KL of each action token. See `Algorithm.token_loss`.

        Raises:
            TrainerError: `kl` is set, and there are no reference logprobs.
        """
        import torch

        ratio = torch.exp(logprobs - behavior_logprobs)
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * advantages, within * advantages
        loss = -torch.minimum(surrogate, bounded)
        if self.kl > 0:
            if reference_logprobs is None:
                raise TrainerError(f"grpo(kl={self.kl}) needs the reference policy's logprobs")
            gap = reference_logprobs - logprobs
            loss = loss + self.kl * (torch.expm1(gap) - gap)
        return TokenLoss(loss, ratio.detach(), (bounded < surrogate).detach())


def grpo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    kl: float = 0.0,
    entropy: float = 0.0,
    aggregation: Aggregation = "token",
    eps: float = 1e-6,
) -> GRPO:
    """GRPO for `train`.

    Args:
        clip: how far below 1 the ratio may go before its gradient is cut.
        clip_high: how far above 1; larger than `clip` lets unlikely tokens grow (DAPO).
        kl: factor of the divergence from version 0 of the policy; 0 needs no reference.
        entropy: factor of the entropy bonus; 0 gives none.
        aggregation: `token`: mean over all action tokens of the batch (DAPO); `sequence`: mean
            over trajectories of their mean over tokens (GRPO's first form); `domain`: mean over
            task domains of the mean over all tokens of each, so that short answers are not
            drowned by long episodes of another domain.
        eps: added to the standard deviation of a group's rewards.

    Raises:
        SettingsError: a value out of its range.
    """
    return GRPO(clip, clip_high, kl, entropy, aggregation, eps)


def _rewards(batch: pa.Table) -> Floats:
    rewards = batch["reward"].cast(pa.float64())
    values: Floats = pc.fill_null(rewards, float("nan")).combine_chunks().to_numpy()
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise TrainerError(f"trajectory {at} of the batch has no finite reward; it must be scored")
    return values


def _action_tokens(batch: pa.Table) -> Floats:
    masks = batch["action_mask"].combine_chunks()
    ends = np.concatenate([[0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False))])
    lengths = pc.list_value_length(masks).to_numpy(zero_copy_only=False)
    stops = np.cumsum(lengths)
    counts = ends[stops] - ends[stops - lengths]
    if len(counts) == 0 or counts.min() < 1:
        raise TrainerError("the batch is empty or has a trajectory without an action token")
    return np.asarray(counts, dtype=np.float64)
