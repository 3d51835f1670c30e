"""`rollart runs`, `show` and `query`: what is in the store."""

import shutil
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    import polars as pl


def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, oldest first."""
    import polars as pl

    from rollart_flow.store import list_runs, open_run, store_uri

    found = [
        {
            "name": info.name,
            "uri": uri,
            "status": info.status,
            "steps": open_run(uri).steps.select(pl.col("step").max()).collect().item() or 0,
        }
        for uri, info in list_runs(store)
    ]
    if as_json:
        print_json(found)
        return
    if not found:
        console().print(f"no runs in {store_uri(store)}; `rollart run FILE` makes one")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "status", "steps", "uri"):
        table.add_column(heading, overflow="fold")
    for run in found:
        table.add_row(*(str(run[column]) for column in ("name", "status", "steps", "uri")))
    console().print(table)


def show(
    run: RunName,
    trajectory: Annotated[
        str | None, typer.Option(help="Show one trajectory; the beginning of its id is enough.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run amounts to, or one of its trajectories as a transcript."""
    from rollart_flow.store import open_run

    opened = open_run(run, store=store)
    if trajectory is None:
        from rollart_flow.cli.summary import show_summary, summarize

        summary = summarize(opened)
        if as_json:
            print_json(summary.as_json())
        else:
            show_summary(console(), summary)
        return
    from rollart_flow.cli import transcript

    row = transcript.read_trajectory(opened, transcript.find_trajectory(opened, trajectory))
    if as_json:
        print_json(row)
    else:
        console().print(transcript.render_trajectory(row, transcript.speller(opened)))


def _named(filters: list[str]) -> list["pl.Expr"]:
    from rollart_flow.algorithms.filters import named_filter

    return [named_filter(text) for text in filters]


def query(
    run: RunName,
    sql: Annotated[str, typer.Argument(help="SQL over the tables of the run.")],
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME",
            help="Only trajectories that a filter keeps, such as varied or 'length(256)'.",
        ),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL over trajectories, batches, steps, weights, events, bindings and evaluations."""
    import polars as pl

    from rollart_flow.errors import StoreError
    from rollart_flow.store import open_run

    try:
        rows = open_run(run, store=store).sql(sql, where=_named(filters or []))
    except StoreError as error:
        if isinstance(error.__cause__, pl.exceptions.PolarsError):
            raise SettingsError(str(error)) from error
        raise
    if as_json:
        print_json(rows.to_dicts())
        return
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        fmt_str_lengths=80,
        tbl_width_chars=max(shutil.get_terminal_size().columns, 80),
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
    ):
        print(rows)
