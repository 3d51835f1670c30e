"""`rollart export`: a version of a run's policy as a folder for other tools."""

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json


def export(
    run: RunName,
    to: Annotated[str, typer.Option(metavar="FOLDER", help="The new folder.")],
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
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a version of a run's policy as a folder that transformers and vLLM load."""
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
