"""Losses of action tokens that several recipes share, and what such losses are made of.

A loss that one recipe uses stands in the file of that recipe, see
`rollart_flow.algorithms.recipes`.
"""

from rollart_flow.algorithms.losses.clipped import Clipped
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.algorithms.losses.segments import segment_maxima, segment_means
from rollart_flow.algorithms.losses.truncated import Truncated
from rollart_flow.algorithms.losses.vanilla import Vanilla

__all__ = ["Clipped", "RatioLoss", "Truncated", "Vanilla", "segment_maxima", "segment_means"]
