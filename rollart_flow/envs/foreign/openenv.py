"""Environments of OpenEnv, over the websocket of their server; one connection for each episode.

Requests are {"type": "reset" | "step" | "state" | "close", "data": ...}; the answer to a reset or a
step is {"type": "observation", "data": {"observation", "reward", "done"}}. Invariant: a connection
whose call was cancelled, failed or was answered wrongly is closed, so that no answer is taken for
that to another call.

Source: https://github.com/huggingface/OpenEnv (openenv 0.10, core/env_server/http_server.py)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.base import Environment
from rollart_flow.envs.blocking import BlockingEnvironment
from rollart_flow.envs.foreign.base import ForeignDomain
from rollart_flow.envs.foreign.web import check_address
from rollart_flow.errors import SettingsError
from rollart_flow.secret import Secret
from rollart_flow.types import Action, Observation

Show = Callable[[Mapping[str, Any]], Observation]
Act = Callable[[str | Action], Mapping[str, Any]]


class OpenEnvEnvironment(BlockingEnvironment):
    """An environment of OpenEnv that blocks."""

    version = "openenv/1"


@dataclass(frozen=True)
class OpenEnv(ForeignDomain):
    """Environments at the websocket of an OpenEnv server, such as "ws://127.0.0.1:8000/ws".

    A row holds arguments of the server's `reset` besides the seed, such as {"split": "train",
    "index": 3}. Raises SettingsError if a setting is wrong.
    """

    environment: ClassVar[type[Environment]] = OpenEnvEnvironment

    url: str
    """Address: ws:// or wss://."""
    name: str = field(default="openenv", kw_only=True)  # type: ignore[misc]  # see its base
    show: str | Show = ""
    """How an observation, a JSON object, becomes text: the name of a field, a template with names
    of fields in braces, or a function that returns text or messages. By default its one field, or
    the object as JSON if it has several."""
    action: str | Act = ""
    """How the policy's text becomes an action: the name of the field that holds it, or a function
    that returns the JSON object. By default the text is that object as JSON."""
    tools: bool = False
    """Whether the policy calls the tools that the environment lists (MCP), and nothing else. An
    action without calls is sent as `action` says, or ends the episode if that is not set."""
    invalid_reward: float = 0.0
    """Reward of an action that is no JSON object, or that the server refuses as invalid; the policy
    reads why, and the episode goes on."""
    token: Secret | None = None
    """Sent as a bearer token."""
    wait_s: float = 240.0
    """Longest wait for a server that has reached its capacity [s]; the pauses grow."""
    revision: str = ""
    """Version of the environment at the server, which its messages do not tell; stored with each
    trajectory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.url, ("ws", "wss"), "OpenEnv")
        if isinstance(self.action, str) and "{" in self.action:
            raise SettingsError(
                f"OpenEnv: action is {self.action!r}; it must be the name of a field or a function"
            )
        if self.wait_s < 0:
            raise SettingsError(f"OpenEnv: wait_s is {self.wait_s}; it must be at least 0")

    @property
    def version(self) -> str:
        return f"{self.environment.version}{self.revision and '/' + self.revision}"

    def make(self) -> Environment:
        return OpenEnvEnvironment(self)

    def make_async(self) -> AsyncEnvironment:
        from rollart_flow.envs.foreign.openenv_session import OpenEnvSession

        return OpenEnvSession(self)
