"""`rollart rescore --reward`: another reward function scores the stored attempts of a run."""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import typer

from rollart_flow.cli.output import Interrupted, console, grid, print_json
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.checking.rescore_run import RescoreResult
    from rollart_flow.checking.reward_rescoring import ScoredAgain

_SHOWN = 20
"""Number of attempts that are listed at most, of those whose reward changed or is missing."""


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """Options of the command."""

    reward: str
    name: str | None
    domain: str | None
    where: str | None
    environ: Sequence[str]
    timeout_s: float
    workers: int | None


def rescore_rewards(run: str, options: RewardOptions, store: str | None, *, as_json: bool) -> None:
    """Score a run again and print what changed; exit code 1 if an attempt got no reward."""
    import polars as pl

    logging.getLogger("rollart_flow.rewards").setLevel(logging.ERROR)  # rows have the errors
    from rollart_flow.algorithms.filters import filter_of
    from rollart_flow.checking.rescore_run import rescore
    from rollart_flow.checking.rescoring import free_rescore_name
    from rollart_flow.store import open_run
    from rollart_flow.store.rescored import rescorings

    opened = open_run(run, store=store)
    name = options.name or free_rescore_name(opened)
    conditions = [] if options.where is None else [filter_of(options.where)]
    if options.domain is not None:
        conditions.append(pl.col("domain") == options.domain)
    told: list[ScoredAgain] = []

    def note(each: "ScoredAgain") -> None:
        if each.before != each.after and len(told) < _SHOWN:
            told.append(each)

    try:
        result = rescore(
            opened, options.reward, name=name, timeout_s=options.timeout_s,
            filter=reduce(and_, conditions) if conditions else None,
            workers=options.workers, environ=options.environ, on_scored=note,
        )  # fmt: skip
    except KeyboardInterrupt:
        scored = counted(rescorings(opened).get(name, 0), "attempt")
        said = f"interrupted; {name!r} has scored {scored}; --name {name} goes on"
        raise Interrupted(said) from None
    if as_json:
        print_json(asdict(result) | {"trajectories": [asdict(each) for each in told]})
    else:
        _show(result, told)
    if result.failed:
        raise typer.Exit(1)


def _show(result: "RescoreResult", told: "Sequence[ScoredAgain]") -> None:
    out = console()
    if told:
        headings = ("trajectory", "task", "reward", "now")
        out.print(grid(headings, map(_cells, told), right="reward"))
    more = result.changed + result.failed - len(told)
    if more > 0:
        out.print(f"and {more} more", style="dim")
    failed = f"; {result.failed} got none" if result.failed else ""
    means = f"mean {_figure(result.reward_before)} -> {_figure(result.reward_after)}"
    out.print(
        f"{result.scored} attempts scored under {result.name!r}, {result.changed} rewards changed, "
        f"{means}{failed}",
        soft_wrap=True,
    )
    where = f"trajectory_id, value FROM verdicts WHERE source = '{result.name}' AND key = 'reward'"
    out.print(f"  rollart query {shlex.quote(result.run)} {shlex.quote(f'SELECT {where}')}",
              soft_wrap=True)  # fmt: skip


def _cells(each: "ScoredAgain") -> list[str]:
    now = each.error or _figure(each.after)
    return [each.trajectory_id, each.task_id, _figure(each.before), now]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
