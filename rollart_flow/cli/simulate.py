"""`rollart simulate`: the control plane under virtual time."""

import typer

from rollart_flow.cli.fuzz import fuzz

simulate_app = typer.Typer(
    help="Run the control plane under virtual time.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
simulate_app.command("fuzz")(fuzz)


@simulate_app.callback()
def options(context: typer.Context) -> None:
    """Run the control plane under virtual time; alone, the list of commands."""
    if context.invoked_subcommand is None:
        print(context.get_help())
