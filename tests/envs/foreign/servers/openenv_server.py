"""Serves environments with OpenEnv's own server; run by an interpreter that has openenv.

Usage: python openenv_server.py echo|tools PORT.
"""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    """Text."""

    message: str


class EchoObservation(Observation):
    """The text again."""

    echoed: str = ""


class Echo(Environment):
    """Echoes, until the text is the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.seed = 0

    def reset(self, seed: int | None = None, episode_id: Any = None, **more: Any) -> Any:
        self.seed = seed or 0
        return EchoObservation(echoed=f"{seed} {sorted(more.items())}")

    def step(self, action: EchoAction, timeout_s: Any = None, **more: Any) -> Any:
        if action.message == "raise":
            raise ValueError("no such word")
        right = action.message == str(self.seed)
        return EchoObservation(
            echoed=action.message, reward=float(right), done=right, metadata={"right": right}
        )

    @property
    def state(self) -> State:
        return State()


class Sums(MCPEnvironment):
    """Has a tool that adds."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        server = FastMCP("sums")

        @server.tool
        def add(left: int, right: int) -> int:
            """Add two numbers."""
            return left + right

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: Any = None, **more: Any) -> Any:
        return Observation(metadata={"text": "Add."})

    def _step_impl(self, action: Any, timeout_s: Any = None, **more: Any) -> Any:
        return Observation(done=True)

    @property
    def state(self) -> State:
        return State()


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    if name == "echo":
        app = create_app(Echo, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=2)
    else:
        app = create_app(Sums, Action, Observation, env_name="sums", max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
