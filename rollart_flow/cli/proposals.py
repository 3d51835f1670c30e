"""`rollart plan FILE --hardware ...`: proposals for a pipeline, as a table, JSON and settings."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import Interrupted, console, duration, grid, live, print_json

if TYPE_CHECKING:
    from rollart_flow.pipeline.graph import Graph
    from rollart_flow.simulation.planning.demand import Demand
    from rollart_flow.simulation.planning.proposal import Proposal
    from rollart_flow.simulation.planning.search import OnDone, Proposals

_ASSUMED = (
    "speed of devices: rooflines with assumed shares of the peaks; transfer of weights: as in "
    "ROLLART Table 4; training: 35% of the peak, 5 s beside it"
)
_HEADINGS = (
    "", "engines", "trainer", "schedule", "redundant", "step [s]", "between", "per step",
    "per hour", "binds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Hardware, prices and limits of a plan, as the command line has them."""

    file: str
    hardware: str
    run: str | None
    store: str | None
    prices: Sequence[str]
    seeds: int
    limit_s: float
    unpriced: tuple[str, ...] = ()
    """Classes without a price."""


def propose(pipeline: "Graph", request: PlanRequest, *, as_json: bool) -> None:
    """Search and show proposals for a pipeline.

    Raises:
        SettingsError: the hardware, a price or the run is of no use; one line says why.
    """
    from rollart_flow.pipeline.prices import read_prices
    from rollart_flow.simulation.planning.candidates import check_request
    from rollart_flow.simulation.planning.demand import demand_of
    from rollart_flow.simulation.planning.devices import read_hardware
    from rollart_flow.simulation.planning.search import PlanSearch

    hardware = read_hardware(request.hardware)
    prices = {**pipeline.prices, **read_prices(request.prices)}
    unpriced = tuple(name for name in hardware if name not in prices)
    request = replace(request, unpriced=unpriced)
    recorded = None
    if request.run is not None:
        from rollart_flow.simulation.stored.recorded import recorded_scenario
        from rollart_flow.store import open_run

        recorded = recorded_scenario(open_run(request.run, store=request.store))
    demand = demand_of(pipeline, recorded)
    check_request(hardware, pipeline, demand)
    try:
        with _showing(quiet=as_json) as on_done:
            found = PlanSearch(
                pipeline, hardware, demand, prices, request.seeds, request.limit_s, on_done
            ).run()
    except KeyboardInterrupt:
        raise Interrupted("interrupted; no proposal was chosen yet") from None
    if as_json:
        print_json(_as_object(pipeline, request, demand, found))
    else:
        out = console()
        out.print(_render(request, pipeline.name, found))
        out.print(_command(pipeline, request.file, found.proposals[0]), soft_wrap=True)
        out.print(_notes(request, demand, found))


def _command(pipeline: "Graph", file: str, chosen: "Proposal") -> str:
    """The command that runs a pipeline as a proposal says."""
    words = [w for k, v in chosen.allocation.settings(pipeline).items() for w in ("-s", f"{k}={v}")]
    return shlex.join(("rollart", "run", file, *words))


def _as_object(
    pipeline: "Graph", request: PlanRequest, demand: "Demand", found: "Proposals"
) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "hardware": request.hardware,
        "proposals": [_proposal(pipeline, each) for each in found.proposals],
        "command": _command(pipeline, request.file, found.proposals[0]),
        "assumptions": _assumptions(found.proposals[0], demand),
        "simulations": found.simulated,
        "cut": found.cut,
    }


def _proposal(pipeline: "Graph", each: "Proposal") -> dict[str, Any]:
    return {
        "settings": each.allocation.settings(pipeline),
        "devices": dict(each.allocation.devices),
        "step_s": each.step_s,
        "low_s": each.low_s,
        "high_s": each.high_s,
        "throughput": each.throughput,
        "cost_per_step": each.step,
        "cost_per_hour": each.hour,
        "binds": each.binds,
        "loads_s": dict(each.loads),
    }


def _render(request: PlanRequest, name: str, found: "Proposals") -> RenderableType:
    chosen = found.proposals[0]
    table = grid(_HEADINGS)
    table.columns[3].no_wrap = True
    for number, each in enumerate(found.proposals):
        table.add_row("chosen" if number == 0 else str(number + 1), *_cells(each))
    loads = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in chosen.loads.items())
    between = "one after the other" if chosen.serial else "beside each other"
    parts: list[RenderableType] = [
        Text(f"{name} on {request.hardware}", style="bold"),
        table,
        Text(f"{chosen.binds} binds. Each alone needs of a step: {loads}; rollout and training "
             f"run {between}."),
        Text(""),
    ]  # fmt: skip
    return Group(*parts)


def _notes(request: PlanRequest, demand: "Demand", found: "Proposals") -> RenderableType:
    """Return the assumptions of the figures, and how to get better figures."""
    parts: list[RenderableType] = [Text("")]
    assumed = _assumptions(found.proposals[0], demand)
    parts += [Text(f"assumed: {said}", style="dim") for said in assumed]
    if request.unpriced:
        names = ", ".join(request.unpriced)
        parts.append(
            Text(f"no price of {names}: give one with --price {request.unpriced[0]}=PRICE")
        )
    if found.cut:
        parts.append(
            Text(
                f"the search ended after {found.simulated} simulations, at --limit "
                f"{request.limit_s:g} s; a longer limit may find better"
            )
        )
    return Group(*parts)


def _assumptions(chosen: "Proposal", demand: "Demand") -> list[str]:
    """Return the assumptions that neither pipeline nor run states."""
    from rollart_flow.simulation.planning.devices import CPU
    from rollart_flow.simulation.planning.proposal import PREDICTION_ERROR

    size = f"{demand.model.parameters / 1e9:.3g} billion parameters, from the policy's sizes"
    if chosen.allocation.trainer == CPU:
        most = f"{PREDICTION_ERROR:.0%}"
        return [
            "each engine as fast as in the run, however many there are",
            f"errors of at most {most}, as 9 of 10 predictions between stored runs had",
        ]
    return [*demand.assumptions, size, _ASSUMED]


def _cells(each: "Proposal") -> tuple[str, ...]:
    given = each.allocation
    size = f" x {given.units}" if given.units > 1 else ""
    lines = [f"{given.workers}{size} {name}:\n{_domains(given.affinity, name)}"
             for name in given.classes]  # fmt: skip
    if given.prefill:
        lines.append(f"{given.prefill}{size} {given.trainer}: prompts")
    return (
        "\n".join(lines),
        f"{given.ranks or 1} {given.trainer}",
        given.schedule.name,
        str(given.redundancy),
        f"{each.step_s:.2f}",
        f"{each.low_s:.2f} to {each.high_s:.2f}",
        "-" if each.step is None else f"{each.step:.4g}",
        "-" if each.hour is None else f"{each.hour:.4g}",
        each.binds,
    )


def _domains(affinity: Sequence[tuple[str, str]], name: str) -> str:
    return "\n".join(domain for domain, bound in affinity if bound == name)


@contextmanager
def _showing(*, quiet: bool) -> "Iterator[OnDone]":
    """Show in a terminal how many simulations are done, while the block runs."""
    out, at = console(), {"done": 0, "planned": 1}

    def on_done(done: int, planned: int) -> None:
        at.update(done=done, planned=max(done, planned))

    if quiet or not out.is_terminal:
        yield on_done
        return
    spinner = Spinner("dots")
    with live(lambda elapsed_s: _progress(at, spinner, elapsed_s), out):
        yield on_done


def _progress(at: Mapping[str, int], spinner: Spinner, elapsed_s: float) -> RenderableType:
    done, planned = at["done"], at["planned"]
    left = f", {duration(elapsed_s / done * (planned - done))} left" if done else ""
    line = Table.grid(padding=(0, 1))
    line.add_row(
        spinner,
        ProgressBar(total=planned, completed=done, width=30),
        f"simulation {done}/{planned}",
        f"{duration(elapsed_s)} so far{left}",
    )
    return line
