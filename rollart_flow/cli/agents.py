"""`rollart agents`: the programs that a run can have as agents, and their installation."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_flow.cli.arguments import AsJson
from rollart_flow.cli.output import console, duration, grid, print_json

if TYPE_CHECKING:
    from rollart_flow.harness.profiles.installed import InstalledProfile

ALL = "all"

agents_app = typer.Typer(help="Programs that are agents, and where they are installed.")

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of all programs; $ROLLART_AGENTS or the user's data folder unless given.",
    ),
]


@agents_app.callback(invoke_without_command=True)
def agents(context: typer.Context, folder: Folder = None, as_json: AsJson = False) -> None:
    """List the programs that can be agents, with what is installed."""
    if context.invoked_subcommand is not None:
        return
    from rollart_flow.harness.profiles.installing import agents_folder, installed_version

    base = agents_folder() if folder is None else folder.absolute()
    rows = []
    for name, profile in _profiles():
        found = installed_version(base / name)
        where = None if found is None else str(base / name)
        version = profile.pin.version
        rows.append({
            "name": name, "wire": profile.wire, "version": version, "installed": found,
            "where": where,
        })  # fmt: skip
    if as_json:
        print_json(rows)
        return
    shown = ([str(value or "-") for value in row.values()] for row in rows)
    console().print(grid(("name", "wire", "version", "installed", "where"), shown))


@agents_app.command("install")
def install(
    name: Annotated[str, typer.Argument(metavar="NAME|all", help="The program, or all of them.")],
    folder: Folder = None,
    again: Annotated[
        bool, typer.Option("--again", help="Install also what is there in its version.")
    ] = False,
) -> None:
    """Install a program in its tried version, from the registry of npm or pip."""
    from rollart_flow.errors import SettingsError
    from rollart_flow.harness.profiles import installing

    base = installing.agents_folder() if folder is None else folder.absolute()
    profiles = dict(_profiles())
    if name != ALL and name not in profiles:
        expected = ", ".join((*sorted(profiles), ALL))
        raise SettingsError(f"agent {name!r}: expected one of {expected}")
    for chosen in profiles if name == ALL else (name,):
        pin, place = profiles[chosen].pin, base / chosen
        if installing.installed_version(place) == pin.version and not again:
            print(f"{chosen} {pin.version} is in {place}", flush=True)
            continue
        began = time.monotonic()
        installing.install(pin, place)
        took = duration(time.monotonic() - began)
        print(f"{chosen} {pin.version} was installed in {place} ({took})", flush=True)


def _profiles() -> "Iterator[tuple[str, type[InstalledProfile]]]":
    """Yield the agents that are installed from a registry of packages, by name."""
    from rollart_flow.harness.profiles.installed import InstalledProfile
    from rollart_flow.harness.registry import AGENTS

    for name, profile in AGENTS.variants():
        if issubclass(profile, InstalledProfile):
            yield name, profile
