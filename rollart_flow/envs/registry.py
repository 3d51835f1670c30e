"""Registry of task domains by the name that a pipeline and the column `domain` use.

    tasks("frozenlake(slippery=True)", "arithmetic", group_size=8)

A domain is a frozen dataclass with an environment. To add one inside the library: its module, and
its name below. A pipeline may use any `Domain` without a name; a package adds a name through an
entry point of the group `rollart_flow.environments`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from rollart_flow.calls import parse_call
from rollart_flow.envs.base import Domain
from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry

T = TypeVar("T")

ENVIRONMENTS: Registry[type[Domain]] = Registry(
    "environments",
    {
        "alfworld": "rollart_flow.envs.alf_world:AlfWorld",
        "arithmetic": "rollart_flow.envs.arithmetic:Arithmetic",
        "frozenlake": "rollart_flow.envs.frozen_lake:FrozenLake",
        "gem": "rollart_flow.envs.gem_game:GemGame",
        "gymnasium": "rollart_flow.envs.gymnasium_text:GymnasiumText",
        "harbor": "rollart_flow.envs.swe.harbor.domain:HarborTasks",
        "math_python": "rollart_flow.envs.math_python:MathWithPython",
        "minesweeper": "rollart_flow.envs.minesweeper:Minesweeper",
        "nemo_gym": "rollart_flow.envs.foreign.nemo_gym:NemoGym",
        "openenv": "rollart_flow.envs.foreign.openenv:OpenEnv",
        "questions": "rollart_flow.envs.questions.domain:Questions",
        "reasoning_gym": "rollart_flow.envs.reasoning:ReasoningGym",
        "shop": "rollart_flow.envs.shop.domain:Shop",
        "skyrl_gym": "rollart_flow.envs.foreign.skyrl_gym:SkyRLGym",
        "sokoban": "rollart_flow.envs.sokoban:Sokoban",
        "textworld": "rollart_flow.envs.text_world:TextWorld",
        "swe_mutants": "rollart_flow.envs.swe.mutants:SweMutants",
        "swe_rows": "rollart_flow.envs.swe.rows:SweRows",
        "swe_sample": "rollart_flow.envs.swe.sample:SweSample",
        "verifiers": "rollart_flow.envs.foreign.verifiers:Verifiers",
    },
    setting="environment",
    kind=type,
)


def named_domain(text: str) -> Domain:
    """The domain of a text, e.g. "frozenlake(slippery=True)"; SettingsError if it is wrong."""
    call = parse_call("environment", text, "frozenlake or frozenlake(slippery=True)")
    make = ENVIRONMENTS.load(call.name)
    try:
        domain = make(*call.arguments, **call.keywords)
    except TypeError as error:
        raise SettingsError(f"environment {text!r}: {error}") from None
    if not isinstance(domain, Domain):
        raise SettingsError(f"environment {text!r}: {make.__name__} is no Domain")
    return domain


def domain_of_folder(folder: Path) -> Domain:
    """The domain that reads a folder of tasks.

    Raises:
        SettingsError: no domain reads it, or its tasks cannot be read.
    """
    for name in ENVIRONMENTS.names():
        if (found := ENVIRONMENTS.load(name).of_folder(folder)) is not None:
            return found
    raise SettingsError(f"{folder}: no domain reads this folder as a folder of tasks")


def domains_of(values: Iterable[T | str]) -> tuple[T | Domain, ...]:
    """Return the values with each text replaced by the domain that it names."""
    return tuple(named_domain(value) if isinstance(value, str) else value for value in values)
