"""`rollart simulate fuzz`: look for a seed that breaks a promise of the control plane."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rollart_flow.cli.arguments import AsJson
from rollart_flow.cli.output import console, duration, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.simulation.fuzz import Result

_SHOWN = 3
"""Failures that are told in full; of the others the command."""


def fuzz(
    seeds: Annotated[
        str, typer.Option(metavar="A:B", help="Seeds from A up to B - 1, or a single one.")
    ] = "0:1000",
    bug: Annotated[
        str | None, typer.Option(help="Plant a bug on purpose, to see it found.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Print the whole log of every run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run simulated clusters with faults at every await; exit code 1 if a promise is broken."""
    from rollart_flow.simulation.fuzz import fuzz as run_seeds

    chosen = seeds_from(seeds)
    tally = Tally(stories=not (log or as_json))
    out = console()
    interrupted = False
    try:
        with _advancing(len(chosen), out, quiet=as_json) as advance:
            for result in run_seeds(chosen, bug=bug):
                tally.add(result)
                if not as_json:
                    for line in [result.story(None)] if log else tally.told(result):
                        out.print(line, soft_wrap=True)
                advance()
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_json(tally.found)
    else:
        out.print(("interrupted after " if interrupted else "") + tally.summary(), soft_wrap=True)
    if interrupted or tally.failed:
        raise typer.Exit(1)


def seeds_from(text: str) -> range:
    """The seeds that `A:B` or a single number names.

    Raises:
        SettingsError: it is neither, or there are none between A and B.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        raise SettingsError(f"--seeds {text!r} is neither A:B, such as 0:1000, nor a single seed")
    first = int(match[1])
    seeds = range(first, first + 1 if match[2] is None else int(match[2]))
    if not seeds:
        raise SettingsError(f"--seeds {text!r} names no seed: the second number is not included")
    return seeds


@dataclass
class Tally:
    """What became of the seeds so far; logs are not kept."""

    stories: bool
    """Whether the first failures are told in full."""
    found: list[dict[str, object]] = field(default_factory=list)
    """For `--json`."""
    failed: int = 0
    checks: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, result: "Result") -> None:
        """Count a seed."""
        self.failed += not result.ok
        self.checks += result.checks
        self.found.append(
            {
                "seed": result.seed,
                "ok": result.ok,
                "error": result.error,
                "command": result.command,
            }
        )

    def told(self, result: "Result") -> list[str]:
        """What to say of a seed that was just counted: nothing, where it holds."""
        if result.ok:
            return []
        if self.stories and self.failed <= _SHOWN:
            return [result.story(), ""]
        return [f"seed {result.seed}: {result.error}", f"  {result.command}"]

    def summary(self) -> str:
        """All in one line."""
        seconds = duration(time.monotonic() - self.began)
        verdict = f"{self.failed} failed" if self.failed else "all hold"
        looked = f"{self.checks} checks of the invariants"
        return f"{len(self.found)} seeds in {seconds}, {looked}: {verdict}"


@contextmanager
def _advancing(total: int, out: Console, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """What counts a seed: a bar with the time that is left in a terminal, nothing in a pipe."""
    if quiet or not out.is_terminal:
        yield lambda: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
    ) as progress:
        task = progress.add_task("seeds", total=total)
        yield lambda: progress.advance(task)
