"""Serves a resources server that the package nemo-gym brings; run by an interpreter that has it.

Usage: python nemo_gym_server.py NAME PORT, such as example_session_state_mgmt 8000.
"""

import importlib
import sys
from typing import Any
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import ServerClient


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    app = importlib.import_module(f"resources_servers.{name}.app")
    found: list[Any] = [
        value
        for value in vars(app).values()
        if isinstance(value, type)
        and issubclass(value, SimpleResourcesServer)
        and value.__module__ == app.__name__
    ]
    config = (
        found[0]
        .model_fields["config"]
        .annotation(host="127.0.0.1", port=port, entrypoint="app.py", name=name)
    )
    # These servers call no other one, which is what the client is for.
    server = found[0](config=config, server_client=MagicMock(spec=ServerClient))
    uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
