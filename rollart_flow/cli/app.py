"""`rollart`: the commands, and the one place where errors become a line and an exit code.

Exit codes: 0 ok, 1 the check or the run failed, 2 wrong use. With `rollart --verbose COMMAND`, or
ROLLART_TRACEBACK=1 in the environment, the traceback is shown in addition to the line.
"""

import gc
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from rollart_flow.cli import doctor, planning, replays, runs, simulate, training
from rollart_flow.cli.agents import agents_app
from rollart_flow.cli.completion import completion
from rollart_flow.cli.demo import demo
from rollart_flow.cli.diff import diff
from rollart_flow.cli.export import export
from rollart_flow.cli.gateway import gateway
from rollart_flow.cli.importing import import_
from rollart_flow.cli.init import init
from rollart_flow.cli.logs import logs
from rollart_flow.cli.output import Interrupted, fail
from rollart_flow.cli.rescore import rescore
from rollart_flow.cli.tasks import tasks_app
from rollart_flow.cli.tracking import track
from rollart_flow.cli.ui import ui
from rollart_flow.cli.watch import watch
from rollart_flow.errors import (
    MissingExtraError,
    PipelineError,
    QueryError,
    RollartError,
    RunExistsError,
    RunNotFoundError,
    SettingsError,
)
from rollart_flow.secret import Secret

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
TRACEBACK_VARIABLE = "ROLLART_TRACEBACK"

_WRONG_USE = (
    PipelineError,
    SettingsError,
    MissingExtraError,
    RunNotFoundError,
    RunExistsError,
    QueryError,
)
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's own error for wrong options and arguments, which it does not export by name."""

_COLLECTIONS = (700, 10, 100)
"""How often a command looks for garbage: as Python does, but in all of its memory a tenth as often.
Modules are most of that, and to walk them again whenever more were loaded took a seventh of the
time of a small run."""
_TYPERS_OPTIONS = frozenset({"install_completion", "show_completion"})
"""Options of Typer that do what the command `completion` does; without them (`add_completion`)
Typer would answer no shell that asks what completes a line."""

app = typer.Typer(
    name="rollart",
    help="Agentic reinforcement learning as a dataflow: run pipelines and read stored runs.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo)
app.command("init")(init)
app.command("run")(training.run)
app.command("resume")(training.resume)
app.command("fork")(training.fork)
app.command("plan")(planning.plan)
app.command("runs")(runs.runs)
app.command("show")(runs.show)
app.command("watch")(watch)
app.command("logs")(logs)
app.command("query")(runs.query)
app.command("redteam")(runs.redteam)
app.command("diff")(diff)
app.command("replay")(replays.replay)
app.command("rescore")(rescore)
app.command("export")(export)
app.command("import")(import_)
app.command("track")(track)
app.command("gateway")(gateway)
app.command("ui")(ui)
app.command("simulate", cls=simulate.WithScenarios)(simulate.simulate)
reward_app = typer.Typer(help="Reward functions as endpoints.", no_args_is_help=True)
app.add_typer(reward_app, name="reward")
app.add_typer(tasks_app, name="tasks")
app.add_typer(agents_app, name="agents")
app.command("doctor")(doctor.doctor)
app.command("completion")(completion)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(version("rollart-flow"))
    except PackageNotFoundError:
        print("not installed: run from its sources")
    raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
    verbose: bool = typer.Option(
        False, "--verbose", help="Show the traceback of an error besides its line."
    ),
) -> None:
    """Options before any command; without a command, print the list of commands."""
    if verbose:
        os.environ[TRACEBACK_VARIABLE] = "1"
    if context.invoked_subcommand is None:
        print(context.get_help())


@reward_app.callback()
def _commands() -> None:
    """Reward functions as endpoints."""


@reward_app.command("serve")
def serve(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="The reward function.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine reaches the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 0,
    environ: Annotated[
        list[str] | None,
        typer.Option(help="An environment variable that the function needs; may be repeated."),
    ] = None,
    token_variable: Annotated[
        str | None,
        typer.Option(help="Environment variable with the bearer token that clients must send."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients address the server; may be repeated."),
    ] = None,
) -> None:
    """Serve a reward function over HTTP until Ctrl-C; prints the URL for `reward(up, URL)`."""
    from rollart_flow.serverless.endpoint import load_function
    from rollart_flow.serverless.server import serve_http

    sys.path.insert(0, "")  # modules of the current folder, as for `python -m`
    loaded = load_function(function)
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
        serve_http(
            loaded,
            host=host,
            port=port,
            environ=environ or (),
            token=None if token_variable is None else Secret.from_env(token_variable),
            hosts=allow_host or (),
            on_listening=partial(print, flush=True),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the process's arguments are the default."""
    if arguments is None:
        gc.set_threshold(*_COLLECTIONS)
    code = _run(arguments)
    if code and arguments is None:
        _leave_threads(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        command = typer.main.get_command(app)
        command.params = [each for each in command.params if each.name not in _TYPERS_OPTIONS]
        code = command.main(
            None if arguments is None else list(arguments), "rollart", standalone_mode=False
        )
        sys.stdout.flush()
    except _UsageError as error:
        # Only a usage error has the method; its plain text leaves out which argument it was.
        return fail(error.format_message(), WRONG_USE)  # type: ignore[attr-defined]
    except RollartError as error:
        return _failed(error, str(error), WRONG_USE if isinstance(error, _WRONG_USE) else FAILED)
    except Interrupted as interrupted:
        return fail(str(interrupted), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001  the process ends here; a bug becomes a line too
        hint = "(this is a bug; `rollart --verbose` shows where)"
        return _failed(error, f"{type(error).__name__}: {error} {hint}", FAILED)
    if code == INTERRUPTED:  # Typer may have caught the interrupt before
        return fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _leave_threads(code: int) -> None:
    """End the process at once if a thread is left, whose code of users may hang for ever."""
    main_thread = threading.main_thread()
    if any(not thread.daemon and thread is not main_thread for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(code)


def _failed(error: Exception, said: str, code: int) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return fail(said, code)
