"""`rollart init NAME`: a project that runs at once, to be changed into one of your own."""

import re
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from rollart_flow.cli.output import console
from rollart_flow.errors import SettingsError

_FILES = ("pipeline.py", "test_pipeline.py", "README.md")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project.")],
    folder: Annotated[
        str | None, typer.Option(help="Folder to write into; one of the name unless given.")
    ] = None,
) -> None:
    """Make a project: a pipeline with an environment and a reward, a test, and a README."""
    if not _NAME.fullmatch(name):
        raise SettingsError(f"project name {name!r}: use letters, digits, '-', '_' and inner '.'")
    target = Path(folder or name)
    if taken := [file for file in _FILES if (target / file).exists()]:
        raise SettingsError(f"{target} has {taken[0]} already; choose another name or --folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in _FILES:
            (target / file).write_text(template(file).replace("NAME", name), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error}") from error
    out = console()
    out.print(f"{target} has {', '.join(_FILES)}")
    out.print("\ntry next", style="bold")
    for command in (f"cd {quote(str(target))}", "rollart run pipeline.py --name first", "pytest"):
        out.print(f"  {command}", soft_wrap=True)


def template(file: str) -> str:
    """Text of a file of the project, with NAME in place of its name."""
    return (files("rollart_flow.cli") / "project" / f"{file}.txt").read_text(encoding="utf-8")
