"""The question before the pipeline of somebody else's run is executed."""

import sys
from typing import Annotated, TypeAlias

import typer

from rollart_flow.cli.output import escape_controls
from rollart_flow.errors import SettingsError

Trust: TypeAlias = Annotated[
    bool,
    typer.Option("--trust", help="Execute the pipeline.py of the run though it is not yours."),
]


def check_trusted(uri: str, agreed: bool) -> None:
    """Ask on a terminal whether to execute the pipeline of a run that this user did not make.

    Raises:
        SettingsError: the user does not agree, or cannot be asked.
    """
    from rollart_flow.runner.trust import is_trusted, trust

    if is_trusted(uri):
        return
    said = f"the run at {uri} is not yours, and its pipeline.py would be executed"
    if not agreed and sys.stdin.isatty() and sys.stderr.isatty():
        agreed = typer.confirm(f"{escape_controls(said)}; execute it?", err=True)
    if not agreed:
        raise SettingsError(f"{said}; read it, and pass --trust to agree")
    trust(uri)
