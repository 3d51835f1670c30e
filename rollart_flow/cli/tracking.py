"""`rollart track`, and the options by which other commands name trackers."""

import json
from dataclasses import asdict, replace
from typing import Annotated, TypeAlias

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, grid, print_json
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline import LoadedPipeline
from rollart_flow.trackers.prometheus import PrometheusTracker
from rollart_flow.trackers.registry import TRACKERS, named_trackers

_SETTING = "pipeline.trackers"

Track: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Show the run in a tracker beside the pipeline's own, such as tensorboard or "
        "\"wandb(project='lakes')\"; may be repeated.",
    ),
]

Metrics: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--metrics",
        metavar="PORT",
        min=1,
        max=65535,
        help="Port on loopback at which Prometheus finds the metrics; there is none unless given.",
    ),
]


def tracked_by(
    loaded: LoadedPipeline, given: list[str] | None, metrics: int | None = None
) -> LoadedPipeline:
    """Return a pipeline with further trackers, as a setting that `resume` finds again."""
    endpoint = [] if metrics is None else [str(PrometheusTracker(port=metrics))]
    given = [*(given or []), *endpoint]
    if not given:
        return loaded
    trackers = named_trackers([*loaded.pipeline.trackers, *given])
    change = {_SETTING: json.dumps([str(tracker) for tracker in trackers])}
    pipeline = loaded.pipeline.override(change)
    return replace(loaded, pipeline=pipeline, overrides={**loaded.overrides, **change})


def track(
    run: RunName,
    track: Track = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write what trackers lack of a stored run; those of its pipeline unless some are given.

    Each tracker goes on where it was left, so that the command may be repeated while a run goes on.
    """
    from rollart_flow.store import open_run
    from rollart_flow.trackers.following import catch_up

    opened = open_run(run, store=store)
    wanted = track or list(opened.info.settings.get("trackers", ()))
    if not wanted:
        names = ", ".join(TRACKERS.names())
        raise SettingsError(f"run {opened.info.name} has no tracker; give --track, one of {names}")
    done = catch_up(opened, named_trackers(wanted))
    if as_json:
        print_json([asdict(each) for each in done])
    else:
        rows = ((each.tracker, str(each.records), each.error or "") for each in done)
        console().print(grid(("tracker", "records", "error"), rows, right="records"))
    if any(each.error for each in done):
        raise typer.Exit(1)
