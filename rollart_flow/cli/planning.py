"""`rollart plan`: what a pipeline will run and where, or proposals for given hardware."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from rollart_flow.cli.arguments import (
    Address,
    AsJson,
    Changes,
    PipelineFile,
    SettingsFile,
    Store,
    load,
)
from rollart_flow.cli.output import console, print_json
from rollart_flow.errors import SettingsError

Hardware: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="CLASS=N,...", help="Propose settings for these devices: H800=96,H20=32."),
]
PlanFrom: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="RUN", help="Beside --hardware: take lengths and latencies of a run."
    ),
]
PlanPrice: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS=PRICE",
        help="Beside --hardware: price of an hour of one device; the pipeline's otherwise.",
    ),
]
PlanSeeds: TypeAlias = Annotated[
    int, typer.Option(min=1, metavar="N", help="Beside --hardware: seeds of the best proposals.")
]
PlanLimit: TypeAlias = Annotated[
    float, typer.Option(min=1, metavar="S", help="Beside --hardware: longest search [s].")
]


def plan(
    file: PipelineFile,
    changes: Changes = None,
    config: SettingsFile = None,
    environments: Annotated[
        bool,
        typer.Option(
            "--environments/--no-environments",
            help="Whether to make an environment of each domain, to see that it can be made.",
        ),
    ] = True,
    address: Address = None,
    hardware: Hardware = None,
    run: PlanFrom = None,
    store: Store = None,
    price: PlanPrice = None,
    seeds: PlanSeeds = 3,
    limit: PlanLimit = 120.0,
    as_json: AsJson = False,
) -> None:
    """Show what a pipeline will run and where, without running it.

    With an address also what the Ray cluster there would grant now. With --hardware, propose
    settings for these devices, by simulations, with the predicted time and price of a step.
    """
    from rollart_flow.cli.plans import render_grants, render_plan
    from rollart_flow.pipeline.environments import check_environments

    pipeline = load(file, config, changes).pipeline
    if hardware is None and (run or price):
        raise SettingsError("--from and --price are for proposals; give --hardware too")
    if hardware is not None:
        from rollart_flow.cli.proposals import PlanRequest, propose

        request = PlanRequest(file, hardware, run, store, price or (), seeds, limit)
        propose(pipeline, request, as_json=as_json)
        return
    if environments:
        check_environments(pipeline, Path(file))
    grants = None
    if address is not None:
        from rollart_flow.runner.executors.ray_cluster import ray_cluster
        from rollart_flow.runner.placement import preview

        with ray_cluster(address):
            grants = preview(pipeline)
    made = pipeline.plan()
    if as_json:
        more = {} if grants is None else {"grants": [asdict(grant) for grant in grants]}
        print_json({**made.as_json(), **more})
        return
    console().print(render_plan(made))
    if grants is not None:
        console().print(render_grants(grants))
