"""`rollart import`: conversations of others as the trajectories of a new run."""

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from rollart_flow.cli.arguments import AsJson, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.text import counted


def import_(
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files of JSONL or Parquet.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="A folder of Hugging Face, a repository, a run, or `tiny`: its chat template "
            "makes tokens of the conversations.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the new run.")],
    form: Annotated[
        str | None,
        typer.Option("--format", help="jsonl or parquet; what the files' names say unless given."),
    ] = None,
    domain: Annotated[
        str, typer.Option(metavar="NAME", help="Domain of conversations that name none.")
    ] = "imported",
    context: Annotated[
        int | None, typer.Option(min=8, help="Most tokens of a conversation.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what is no conversation, and count it.")
    ] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Make a run of conversations that others had, which train, show, query and ui read."""
    from rollart_flow.importing import import_conversations

    found = import_conversations(
        paths, policy=policy, name=name, form=form, domain=domain, skip_bad=skip_bad,
        store=store, context=context,
    )  # fmt: skip
    if as_json:
        print_json(asdict(found))
        return
    out = console()
    rows, groups = counted(found.conversations, "conversation"), counted(found.groups, "group")
    out.print(f"{rows} in {groups}, {found.tokens} tokens of the assistant, in {found.uri}",
              soft_wrap=True)  # fmt: skip
    for said in found.errors:
        out.print(said, style="yellow", soft_wrap=True, markup=False)
    if found.skipped:
        out.print(f"{counted(found.skipped, 'record')} skipped")
    out.print("try next", style="bold")
    out.print(f"  rollart show {shlex.quote(found.run)}", soft_wrap=True)
