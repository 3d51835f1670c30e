"""`rollart ui`: runs in a browser, read-only."""

import signal
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_flow.cli.arguments import Store
from rollart_flow.errors import SettingsError
from rollart_flow.secret import Secret

if TYPE_CHECKING:
    from rollart_flow.ui.catalog import RunCatalog


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
    demo: Annotated[
        bool, typer.Option("--demo", help="Show a made-up run with rows of every kind.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser, too.")] = False,
) -> None:
    """Show runs in a browser until Ctrl-C; prints the URL. Nothing can be changed there."""
    from rollart_flow.ui.catalog import RunCatalog
    from rollart_flow.ui.serving import serve_ui

    if demo and (runs or store):
        raise SettingsError("--demo shows its own run; leave out RUN and --store")

    def listening(url: str) -> None:
        print(url, flush=True)
        if open_browser:
            webbrowser.open(url)

    with ExitStack() as left:
        left.enter_context(suppress(KeyboardInterrupt))  # Ctrl-C is the normal end
        catalog = left.enter_context(_demo()) if demo else RunCatalog(runs or (), store)
        serve_ui(
            catalog,
            listening,
            host=host,
            port=port,
            token=None if token_variable is None else Secret.from_env(token_variable),
            names=allow_host or (),
            without_token=unsafe_without_token,
        )


@contextmanager
def _demo() -> "Iterator[RunCatalog]":
    """Write the demonstration run and a fork of it into a folder, which is removed at the end.

    SIGTERM ends the block like Ctrl-C; uvicorn sends it again after it has closed.
    """
    from rollart_flow.ui.catalog import RunCatalog
    from rollart_flow.ui.demo.run import write_demo_run

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with TemporaryDirectory(prefix="rollart-demo-") as folder:
            write_demo_run(folder, "fork", parent=write_demo_run(folder))
            yield RunCatalog(store=folder)
    finally:
        signal.signal(signal.SIGTERM, before)
