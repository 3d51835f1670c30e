"""`rollart reward serve`: any reward function as an endpoint that pipelines can call."""

import sys
from contextlib import suppress
from typing import Annotated

import typer

reward_app = typer.Typer(help="Reward functions as endpoints.", no_args_is_help=True)


@reward_app.callback()
def _commands() -> None:
    """Reward functions as endpoints."""


@reward_app.command("serve")
def serve(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Where the reward function is.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine reaches the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
) -> None:
    """Serve a reward function over HTTP until Ctrl-C; prints the URL for `reward(up, URL)`."""
    from rollart_flow.serverless.endpoint import load_function
    from rollart_flow.serverless.server import serve_http

    sys.path.insert(0, "")  # modules of the current folder, as for `python -m`
    loaded = load_function(function)
    with suppress(KeyboardInterrupt):  # how it is meant to end
        serve_http(loaded, host=host, port=port, on_listening=_say)


def _say(url: str) -> None:
    print(url, flush=True)
