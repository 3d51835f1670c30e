"""`rollart ui`: runs in a browser, read-only."""

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from rollart_flow.cli.arguments import Store
from rollart_flow.secret import Secret


def ui(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs to show; all of the store unless given."),
    ] = None,
    store: Store = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine reaches the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 0,
    token_variable: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the token that browsers must present; beyond this "
            "machine one is made up unless given."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which browsers address the server; may be repeated."),
    ] = None,
    unsafe_without_token: Annotated[
        bool,
        typer.Option(
            "--unsafe-without-token",
            help="Let whoever reaches the server beyond this machine read every run.",
        ),
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser, too.")] = False,
) -> None:
    """Show runs in a browser until Ctrl-C; prints the URL. Nothing can be changed there."""
    from rollart_flow.ui.catalog import RunCatalog
    from rollart_flow.ui.serving import serve_ui

    def listening(url: str) -> None:
        print(url, flush=True)
        if open_browser:
            webbrowser.open(url)

    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
        serve_ui(
            RunCatalog(runs or (), store),
            listening,
            host=host,
            port=port,
            token=None if token_variable is None else Secret.from_env(token_variable),
            names=allow_host or (),
            without_token=unsafe_without_token,
        )
