"""`rollart export`: a version of a run's policy, or its trajectories, for other tools."""

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.errors import SettingsError
from rollart_flow.text import counted


def export(
    run: RunName,
    to: Annotated[str, typer.Option(metavar="PATH", help="The new folder, or file of rows.")],
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            "--step",
            min=0,
            help="Version to export, which the step of its number made; by default the newest one.",
        ),
    ] = None,
    lora: Annotated[
        bool, typer.Option("--lora", help="Merge the LoRA adapter that the run is evaluated with.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Export trajectories instead: jsonl, parquet, or hf for `load_dataset`.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Only trajectories that a filter keeps, such as varied or 'reward > 0'.",
        ),
    ] = None,
    what: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Write conversations (default) or tokens.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a version of a run's policy as a folder that transformers and vLLM load.

    With --format, write trajectories of the run as a data set.
    """
    if form is not None:
        if version is not None or lora:
            raise SettingsError("--version and --lora export weights, --format exports rows")
        _export_data(run, to, form, what or "conversations", where, store, as_json=as_json)
        return
    if where is not None or what is not None:
        raise SettingsError("--filter and --what go with --format jsonl, parquet or hf")
    from rollart_flow import exporting

    exported = exporting.export(run, to, version=version, lora=lora, store=store)
    if as_json:
        print_json(asdict(exported))
        return
    size = f"{exported.size_bytes / 1e6:.1f} MB"
    out = console()
    said = f"version {exported.version} of {exported.run} is in {exported.folder}, {size}"
    out.print(said, soft_wrap=True)
    out.print("try next", style="bold")
    out.print(f"  vllm serve {shlex.quote(exported.folder)}", soft_wrap=True)


def _export_data(
    run: str, to: str, form: str, what: str, where: str | None, store: str | None, *, as_json: bool
) -> None:
    """Write a data set and print what it has."""
    from rollart_flow.exporting.data import export_data

    exported = export_data(run, to, format=form, what=what, filter=where, store=store)  # type: ignore[arg-type]
    if as_json:
        print_json(asdict(exported))
        return
    out = console()
    rows, parts = counted(exported.rows, "row"), counted(len(exported.files), "file")
    out.print(f"{rows} of {exported.run} in {exported.path}, {parts} of {what}", soft_wrap=True)
    if exported.images:
        out.print(f"{counted(exported.images, 'image')} beside them")
    if exported.left_out:
        out.print(f"{counted(exported.left_out, 'row')} without a turn left out")
