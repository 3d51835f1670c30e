"""Algorithms of a policy gradient: frozen settings that load no torch until they run."""

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.cispo import cispo
from rollart_flow.algorithms.corrections import icepop, opsm, tis
from rollart_flow.algorithms.critic import Critic
from rollart_flow.algorithms.dapo import dapo
from rollart_flow.algorithms.decoupled_ppo import decoupled_ppo
from rollart_flow.algorithms.double_sided import double_sided
from rollart_flow.algorithms.dr_grpo import dr_grpo
from rollart_flow.algorithms.grpo import grpo
from rollart_flow.algorithms.gspo import gspo
from rollart_flow.algorithms.impala import impala
from rollart_flow.algorithms.ipa import ipa
from rollart_flow.algorithms.kimi import kimi
from rollart_flow.algorithms.ppo import ppo
from rollart_flow.algorithms.reinforce_plus_plus import reinforce_plus_plus
from rollart_flow.algorithms.rloo import rloo
from rollart_flow.algorithms.staleness import Decayed
from rollart_flow.algorithms.tis_loss import tis_loss
from rollart_flow.algorithms.topr import topr
from rollart_flow.control.scheduler.curriculum import Curriculum

__all__ = [
    "Algorithm",
    "Critic",
    "Curriculum",
    "Decayed",
    "cispo",
    "dapo",
    "decoupled_ppo",
    "double_sided",
    "dr_grpo",
    "grpo",
    "gspo",
    "icepop",
    "impala",
    "ipa",
    "kimi",
    "opsm",
    "ppo",
    "reinforce_plus_plus",
    "rloo",
    "tis",
    "tis_loss",
    "topr",
]
