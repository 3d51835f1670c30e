"""Losses of action tokens that several recipes share, and their parts.

The loss of a single recipe is in the file of the recipe, see `rollart_flow.algorithms.recipes`.
"""

from rollart_flow.algorithms.losses.linearized import Linearized
from rollart_flow.algorithms.losses.surrogates import (
    Clipped,
    RatioLoss,
    Truncated,
    Vanilla,
    segment_maxima,
    segment_means,
)
from rollart_flow.exports import lazy_exports

__all__ = [
    "Clipped",
    "Linearized",
    "RatioLoss",
    "Truncated",
    "Vanilla",
    "segment_maxima",
    "segment_means",
]

__getattr__, _ = lazy_exports(
    "rollart_flow.algorithms",
    {
        "recipes.cispo": "CISPO",
        "recipes.decoupled_ppo": "Decoupled",
        "recipes.double_sided": "DoubleSided",
        "recipes.gspo": "GSPO",
        "recipes.ipa": "IPA",
        "recipes.kimi": "Kimi",
        "recipes.topr": "TOPR",
    },
)
"""Losses of single recipes under the names that earlier versions gave them here."""
