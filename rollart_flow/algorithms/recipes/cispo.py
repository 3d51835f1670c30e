"""CISPO: the importance ratio is clipped but its gradient is not, so that every token has one.

    loss = -sg[clip(rho, 1 - clip, 1 + clip_high)] A log pi_theta

With `mask`, tokens that PPO would clip are dropped: A > 0 and rho > 1 + clip_high, or A < 0 and
rho < 1 - clip.

Source: MiniMax-M1 (2506.13585) section 3.1; ROLL's defaults of 0.1.
"""

from dataclasses import dataclass
from typing import Annotated, Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import TokenLoss, Tokens
from rollart_flow.algorithms.losses.surrogates import RatioLoss
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to
from rollart_flow.fields import Within


@dataclass(frozen=True, slots=True)
class CISPO(RatioLoss):
    """Weighted log-likelihood of each action token, with a clipped weight."""

    clip: Annotated[float, Within(0, 1)] = 0.1
    """Distance below 1 at which the ratio is clipped."""
    clip_high: Annotated[float, Within(0)] = 0.1
    """Distance above 1."""
    mask: bool = False
    """Whether tokens that PPO would clip are dropped."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        above, below = ratio > 1.0 + self.clip_high, ratio < 1.0 - self.clip
        clipped = above | below
        weight = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        if self.mask:
            clipped = (above & (tokens.advantages > 0)) | (below & (tokens.advantages < 0))
            weight = weight.masked_fill(clipped, 0.0)
        return TokenLoss(-weight * tokens.advantages * tokens.logprobs, ratio, clipped)


def cispo(
    *, clip: float = 0.1, clip_high: float = 0.1, mask: bool = False, **common: Unpack[WithRatio]
) -> Algorithm:
    """CISPO for `train`, with the settings of its loss and the keywords of `WithRatio`."""
    loss = CISPO(clip, clip_high, mask, ratio_to=ratio_to(common))
    return compose("cispo", loss, common, advantage=GroupNormalized())
