"""Algorithms of a policy gradient: frozen settings that load no torch until they run.

Recipes (`grpo`, ...) and corrections (`tis`, ...) are found by `algorithms.registry` and imported
when they are first used. Adding one takes one file in `recipes` or `corrections`; the imports for
type checkers below only tell editors the signatures of those that are listed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollart_flow.algorithms.algorithm import Algorithm as Algorithm
    from rollart_flow.algorithms.corrections.icepop import icepop as icepop
    from rollart_flow.algorithms.corrections.opsm import opsm as opsm
    from rollart_flow.algorithms.corrections.tis import tis as tis
    from rollart_flow.algorithms.parts.aggregation import Decayed as Decayed
    from rollart_flow.algorithms.parts.critic import Critic as Critic
    from rollart_flow.algorithms.recipes.cispo import cispo as cispo
    from rollart_flow.algorithms.recipes.conditional_sft import conditional_sft as conditional_sft
    from rollart_flow.algorithms.recipes.dapo import dapo as dapo
    from rollart_flow.algorithms.recipes.decoupled_ppo import decoupled_ppo as decoupled_ppo
    from rollart_flow.algorithms.recipes.distill import distill as distill
    from rollart_flow.algorithms.recipes.double_sided import double_sided as double_sided
    from rollart_flow.algorithms.recipes.dpo import dpo as dpo
    from rollart_flow.algorithms.recipes.dr_grpo import dr_grpo as dr_grpo
    from rollart_flow.algorithms.recipes.grpo import grpo as grpo
    from rollart_flow.algorithms.recipes.gspo import gspo as gspo
    from rollart_flow.algorithms.recipes.impala import impala as impala
    from rollart_flow.algorithms.recipes.ipa import ipa as ipa
    from rollart_flow.algorithms.recipes.ipo import ipo as ipo
    from rollart_flow.algorithms.recipes.kimi import kimi as kimi
    from rollart_flow.algorithms.recipes.kto import kto as kto
    from rollart_flow.algorithms.recipes.ppo import ppo as ppo
    from rollart_flow.algorithms.recipes.reinforce_plus_plus import (
        reinforce_plus_plus as reinforce_plus_plus,
    )
    from rollart_flow.algorithms.recipes.rloo import rloo as rloo
    from rollart_flow.algorithms.recipes.sft import sft as sft
    from rollart_flow.algorithms.recipes.tis_loss import tis_loss as tis_loss
    from rollart_flow.algorithms.recipes.topr import topr as topr
    from rollart_flow.control.scheduler.curriculum import Curriculum as Curriculum

_SETTINGS = {
    "Algorithm": "rollart_flow.algorithms.algorithm",
    "Critic": "rollart_flow.algorithms.parts.critic",
    "Curriculum": "rollart_flow.control.scheduler.curriculum",
    "Decayed": "rollart_flow.algorithms.parts.aggregation",
}
"""Module of each class that pipelines name."""


def __getattr__(name: str) -> Any:
    if name in _SETTINGS:
        return getattr(import_module(_SETTINGS[name]), name)
    if not name.startswith("_"):
        from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES

        for registry in (RECIPES, CORRECTIONS):
            if name in registry:
                return registry.load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES

    return sorted([*globals(), *_SETTINGS, *RECIPES.names(), *CORRECTIONS.names()])
