"""IPA: interaction chunks as the actions of a chunked decision process, with discounted returns.

A chunk c is a run of action tokens between two observations, len(c) of them, and

    G_c   = its advantage; with `ChunkReturns`, gamma^(chunks that follow c) R
    rho_c = (prod of pi_theta / pi_old over c)^(1 / len(c))
    m_c   = 1 where (prod of pi_old / mu over c)^(1 / len(c)) <= high, else 0
    loss  = -sg[G_c m_c] log pi_theta                    G_c > 0
            -sg[clip(rho_c, 0, 1) G_c m_c] log pi_theta  otherwise

at each token.

Source: ROLL's agentic report (2512.24873), chunk-level optimization; `gamma` and `high` are those
of a contributor's settings, since the report gives none.
"""

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages.turns import ChunkReturns
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.surrogates import segment_means
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings


@dataclass(frozen=True, slots=True)
class IPA(CheckedSettings, Loss):
    """Masked log-likelihood of each action token; needs no further correction."""

    high: Positive = 5.0
    """Mean ratio of pi_old to the behavior policy beyond which a chunk is dropped."""

    @property
    def anchor(self) -> RatioTo:
        return "behavior"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"old_logprobs", "chunks"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        chunks, old = tokens.need("chunks"), tokens.need("old_logprobs")
        ratio = torch.exp(segment_means(tokens.logprobs.detach() - old, chunks))
        dropped = torch.exp(segment_means(old - tokens.behavior_logprobs, chunks)) > self.high
        taken = torch.where(tokens.advantages > 0, 1.0, ratio.clamp(max=1.0))
        weight = (taken * tokens.advantages).masked_fill(dropped, 0.0)
        clipped = dropped | ((tokens.advantages <= 0) & (ratio > 1.0))
        return TokenLoss(-weight * tokens.logprobs, ratio, clipped)


def ipa(*, gamma: float = 0.95, high: float = 5.0, **common: Unpack[Common]) -> Algorithm:
    """IPA for `train`, with the settings of its loss and the keywords of `Common`.

    Args:
        gamma: discount of one chunk.
    """
    return compose("ipa", IPA(high), common, advantage=ChunkReturns(gamma))
