"""The recipes of `rollart_flow.algorithms` as `bench_learning` compares them.

Each has the defaults of its paper, and the demo's settings for the two domains: the mean by domain
and the penalty towards the initial policy. Recipes whose paper is about aggregation, or about the
lack of a penalty, keep it.
"""

from rollart_flow import algorithms as known
from rollart_flow.algorithms import Algorithm
from rollart_flow.algorithms.base import Correction
from rollart_flow.algorithms.recipe import Common

_DEMO: Common = {"aggregation": "domain", "kl": 0.03}
"""Settings of the demo. All others are the recipe's defaults, except GRPO's upper clip."""
_LONGEST = 80
"""Most action tokens of a trajectory: ten turns of eight."""


def _grpo(correction: Correction | None) -> Algorithm:
    """GRPO as in the demo, with or without a correction."""
    common: Common = {**_DEMO, "correction": correction}
    return known.grpo(clip_high=0.5, **common)


RECIPES: dict[str, Algorithm] = {
    "grpo": _grpo(None),
    "tis": _grpo(known.tis()),
    "icepop": _grpo(known.icepop()),
    "opsm": _grpo(known.opsm()),
    "decoupled_ppo": known.decoupled_ppo(**_DEMO),
    "tis_loss": known.tis_loss(**_DEMO),
    "cispo": known.cispo(**_DEMO),
    "topr": known.topr(**_DEMO),
    "dapo": known.dapo(aggregation="domain"),
    "dr_grpo": known.dr_grpo(constant_tokens=_LONGEST, kl=0.03),
    "double_sided": known.double_sided(**_DEMO),
    "gspo": known.gspo(kl=0.03),
    "impala": known.impala(**_DEMO),
    "ipa": known.ipa(**_DEMO),
    "kimi": known.kimi(**_DEMO),
    "ppo": known.ppo(**_DEMO),
    "reinforce_plus_plus": known.reinforce_plus_plus(**_DEMO),
    "rloo": known.rloo(**_DEMO),
}
"""`tis`, `icepop` and `opsm` are GRPO beside that correction."""

REPEATED = (("grpo", 0), ("grpo", 1), ("decoupled_ppo", 1), ("topr", 1))
"""Runs that `make bench` repeats with one seed, as (recipe, alpha): two minutes of two cores."""

ON_PAR_FOR = tuple((name, alpha) for name in ("grpo", "decoupled_ppo", "topr") for alpha in (1, 2))
"""The recipes that have a goal; the others are only reported: they have the demo's other settings,
which were chosen for a clipped loss (eight updates a batch), and the paper may have had better."""

ON_PAR = 1.5
"""Most steps, relative to on-policy GRPO. The paper shows curves that differ little, no number."""
