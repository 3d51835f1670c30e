"""`rollart run`, `resume` and `fork`: what begins with a pipeline.

Everything heavy is imported when a run starts, so that a mistake in a pipeline file shows at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import join
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_flow.cli.arguments import (
    Address,
    AsJson,
    Changes,
    Executor,
    NewName,
    PipelineFile,
    RunName,
    SettingsFile,
    Store,
    load,
    settings_from,
)
from rollart_flow.cli.output import Interrupted, console, print_json
from rollart_flow.cli.progress import showing_progress
from rollart_flow.cli.tracking import Metrics, Track, tracked_by
from rollart_flow.cli.trusting import Trust, check_trusted
from rollart_flow.errors import SettingsError, StoreError

if TYPE_CHECKING:
    from rollart_flow.runner import RunResult


def run(
    file: PipelineFile,
    store: Store = None,
    name: NewName = None,
    changes: Changes = None,
    config: SettingsFile = None,
    track: Track = None,
    metrics: Metrics = None,
    executor: Executor = "ray",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline; what it leaves is a folder of tables."""
    loaded = tracked_by(load(file, config, changes), track, metrics)
    with showing_progress(loaded.pipeline.name, quiet=as_json) as on_progress:
        from rollart_flow import runner
        from rollart_flow.runner.setup import free_name

        chosen = name or free_name(loaded.pipeline, store)
        with _resumable(chosen, store, executor, address):
            result = runner.run(
                loaded,
                store=store,
                name=chosen,
                executor=executor,
                address=address,
                on_progress=on_progress,
            )
    _report(result, as_json)


def resume(
    run: RunName,
    store: Store = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="steps=N", help="Go on to N steps, also with a finished run."
        ),
    ] = None,
    accept_divergence: Annotated[
        bool,
        typer.Option(
            "--accept-divergence",
            help="Go on although a recomputed step differs from what was recorded.",
        ),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Go on although another process drives the run, once its lease has run out.",
        ),
    ] = False,
    trust: Trust = False,
    executor: Executor = "ray",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was interrupted or has failed, from its tables."""
    from rollart_flow.store import resolve

    steps = _steps_of(changes)
    uri = resolve(run, store)
    check_trusted(uri, trust)
    with showing_progress(run, quiet=as_json) as on_progress:
        from rollart_flow import runner

        with _resumable(run, store, executor, address):
            result = runner.resume(
                uri,
                steps=steps,
                accept_divergence=accept_divergence,
                take_over=take_over,
                executor=executor,
                address=address,
                on_progress=on_progress,
            )
    _report(result, as_json)


def _steps_of(changes: list[str] | None) -> int | None:
    """Return the number of steps that the words of `resume` give.

    Raises:
        SettingsError: another setting is given, which would make another run.
    """
    found = settings_from(changes)
    for key, value in found.items():
        if key not in ("steps", "train.steps"):
            raise SettingsError(
                f"resume changes nothing but steps; `rollart fork` the run to change {key}"
            )
        if not value.isdecimal() or not int(value):
            raise SettingsError(f"train.steps should be a positive integer, got {value!r}")
    return next((int(value) for value in found.values()), None)


def fork(
    run: RunName,
    file: PipelineFile,
    step: Annotated[int, typer.Option(min=0, help="Version of the run to start from.")],
    store: Store = None,
    name: NewName = None,
    changes: Changes = None,
    config: SettingsFile = None,
    trust: Trust = False,
    executor: Executor = "ray",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Start a new run from a version of another, with a pipeline of its own."""
    from rollart_flow.store import resolve

    parent = resolve(run, store)
    check_trusted(parent, trust)
    loaded = load(file, config, changes)
    with showing_progress(loaded.pipeline.name, quiet=as_json) as on_progress:
        from rollart_flow import runner
        from rollart_flow.runner.setup import free_name

        chosen = name or free_name(loaded.pipeline, store)
        with _resumable(chosen, store, executor, address):
            result = runner.fork(
                parent,
                step,
                loaded,
                store=store,
                name=chosen,
                executor=executor,
                address=address,
                on_progress=on_progress,
            )
    _report(result, as_json)


@contextmanager
def _resumable(run: str, store: str | None, executor: str, address: str | None) -> Iterator[None]:
    """Have an interrupt say how the run continues, if there is a run by then."""
    from rollart_flow.runner.executors import DEFAULT
    from rollart_flow.store import resolve

    try:
        yield
    except KeyboardInterrupt:
        try:
            resolve(run, store)
        except StoreError:
            raise Interrupted("interrupted before the run began") from None
        by = None if executor == DEFAULT else executor
        options = {"--store": store, "--executor": by, "--address": address}
        words = [word for name, value in options.items() if value for word in (name, value)]
        command = join(("rollart", "resume", run, *words))
        raise Interrupted(f"interrupted; `{command}` continues the run") from None


def _report(result: "RunResult", as_json: bool) -> None:
    from rollart_flow.cli.summary import summarize
    from rollart_flow.cli.summary_view import show_summary
    from rollart_flow.store import open_run

    summary = summarize(open_run(result.uri))
    if as_json:
        print_json(summary.as_json())
    else:
        show_summary(console(), summary)
    if summary.status != "finished":
        raise typer.Exit(1)
