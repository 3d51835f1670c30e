"""`make fuzz SEEDS=A:B`: search for seeds that break a promise of the control plane.

A single seed prints the event log of its run. The exit code is 0 if every promise was kept, 1 if
one was broken or the search was interrupted, 2 if the arguments are wrong.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rollart_flow.cli.output import console, duration, fail
from rollart_flow.errors import SettingsError
from tests.dst.captured import fuzz_gateway
from tests.dst.fuzzer import Result, fuzz


def main(arguments: Sequence[str]) -> int:
    """Run the seeds that the arguments name; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.dst")
    parser.add_argument("--seeds", default="0:1000", metavar="A:B", help="A to B - 1, or one seed")
    parser.add_argument("--bug", metavar="NAME", help="plant a bug of tests/dst/bugs.py")
    parser.add_argument("--gateway", action="store_true", help="sessions of the gateway instead")
    chosen = parser.parse_args(arguments)
    try:
        seeds = seeds_from(chosen.seeds)
        if not chosen.gateway:
            return search(seeds, fuzz(seeds, bug=chosen.bug))
        if chosen.bug is not None:
            raise SettingsError("there are no bugs to plant in the gateway; leave --bug out")
        return search(seeds, fuzz_gateway(seeds))
    except SettingsError as error:
        return fail(str(error), 2)


def seeds_from(text: str) -> range:
    """The seeds that `A:B` or a single number names.

    Raises:
        SettingsError: the text has neither form, or B is not greater than A.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        raise SettingsError(f"SEEDS={text} is neither A:B, such as 0:1000, nor a single seed")
    first = int(match[1])
    seeds = range(first, first + 1 if match[2] is None else int(match[2]))
    if not seeds:
        raise SettingsError(f"SEEDS={text} names no seed: the second number is not included")
    return seeds


def search(seeds: range, results: Iterable[Result]) -> int:
    """Run each seed, print the failures and one closing line; the exit code."""
    out = console()
    began = time.monotonic()
    done = checks = failures = 0
    interrupted = False
    try:
        with _progress(len(seeds), out) as advance:
            for result in results:
                done += 1
                checks += result.checks
                failures += not result.ok
                if text := _report(result, whole=len(seeds) == 1):
                    out.print(text, soft_wrap=True)
                advance()
    except KeyboardInterrupt:
        interrupted = True
    closing = f"{done} seeds, {checks} checks, {failures} failures"
    seconds = duration(time.monotonic() - began)
    out.print(f"{closing} in {seconds}{', interrupted' if interrupted else ''}", soft_wrap=True)
    return 1 if interrupted or failures else 0


def _report(result: Result, *, whole: bool) -> str:
    """The text about one seed: its event log, its failure, or nothing."""
    if whole:
        return result.story()
    return "" if result.ok else f"seed {result.seed}: {result.error}\n  {result.command}"


@contextmanager
def _progress(total: int, out: Console) -> Iterator[Callable[[], None]]:
    """A function that counts a seed on a bar with the time left; no bar outside a terminal."""
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("seeds", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
