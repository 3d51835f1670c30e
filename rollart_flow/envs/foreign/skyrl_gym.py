"""Environments of SkyRL-Gym, in a process of the virtual environment that has the package.

An environment is made for each episode with its row, as SkyRL does: `init(prompt)` gives the first
messages, and `step(text)` gives further ones, the reward and whether the episode is done. The chain
of tokens keeps what the policy sampled, also where an environment returns a `postprocessed_action`.

Source: https://github.com/NovaSky-AI/SkyRL (skyrl-gym 0.4, envs/base_text_env.py)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rollart_flow.envs.base import Environment, EnvironmentProgram
from rollart_flow.envs.blocking import BlockingEnvironment
from rollart_flow.envs.foreign.base import ForeignDomain
from rollart_flow.envs.foreign.venv import check_python, handler, installed, interpreter
from rollart_flow.errors import SettingsError

_PACKAGE = "skyrl-gym"
_RUN_CODE = frozenset({"lcb"})


class SkyRLGymEnvironment(BlockingEnvironment):
    """An environment of SkyRL-Gym that blocks."""

    version = "skyrl-gym/1"


@dataclass(frozen=True)
class SkyRLGym(ForeignDomain):
    """Environments of SkyRL-Gym by their id, such as "aime" or "gsm8k_multi_turn".

    A row is one of SkyRL's data sets: "prompt" is a list of messages, and the environment gets all
    other columns as its extras. Raises SettingsError if a setting is wrong.
    """

    environment: ClassVar[type[Environment]] = SkyRLGymEnvironment

    env: str
    """Id of the environment in the registry of SkyRL-Gym."""
    name: str = field(default="skyrl-gym", kw_only=True)  # type: ignore[misc]  # see its base
    python: str = ""
    """Interpreter of the virtual environment with skyrl-gym, wherever episodes run."""
    environ: tuple[str, ...] = ()
    """Environment variables that the process gets besides the usual ones."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment, its `env_config`; JSON values."""
    entry_point: str = ""
    """`module:Class` to register under the id, for an environment that SkyRL-Gym does not bring."""
    folder: str = ""
    """Folder with modules of the entry point that are not installed."""
    runs_code: bool = False
    """Whether you accept that the environment runs code that the policy wrote in its own process,
    outside of a box; "lcb" does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_python(self.python, _PACKAGE, "SkyRLGym")
        if self.env in _RUN_CODE and not self.runs_code:
            raise SettingsError(
                f"SkyRLGym: {self.env!r} runs code of the policy outside of a box; set "
                "runs_code=True if the machine holds nothing to protect"
            )
        if not self.rows:
            raise SettingsError(
                "SkyRLGym: rows is empty; name a file with a column prompt, such as rows="
                '"train.parquet"'
            )
        try:
            json.dumps(dict(self.config))
        except TypeError as error:
            raise SettingsError(f"SkyRLGym: config has no JSON form: {error}") from error

    @property
    def version(self) -> str:
        return f"skyrl-gym/{installed(self.python, _PACKAGE)}/{self.env}"

    def make(self) -> Environment:
        return SkyRLGymEnvironment(self)

    def program(self) -> EnvironmentProgram:
        settings = {
            "env": self.env,
            "config": dict(self.config),
            "entry_point": self.entry_point,
            "folder": self.folder,
            "success": self.success,
        }
        return EnvironmentProgram(
            interpreter(self.python), handler("skyrl_gym_child.py", "SkyRLGymHandler"), settings
        )
