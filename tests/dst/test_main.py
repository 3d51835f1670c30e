"""`make fuzz`: the lines that it prints, and its exit codes."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.shell import Said, refused
from tests.dst import Result, fuzz
from tests.dst import __main__ as command

ROOT = Path(__file__).parents[2]
BUG = "return-two-credits"


def run(*arguments: str) -> Said:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command.main(arguments)
    return Said(code, out.getvalue(), err.getvalue())


def arguments_of(make: str) -> Sequence[str]:
    """The arguments that the Makefile passes on for a `make fuzz ...` line."""
    told = subprocess.run(
        [*make.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = [each for each in told.stdout.splitlines() if " -m tests.dst " in each]
    return line.partition(" -m tests.dst ")[2].split()


def test_one_closing_line_where_every_promise_is_kept() -> None:
    said = run("--seeds", "0:3")
    assert said.code == 0
    (line,) = said.out.splitlines()
    assert line.startswith("3 seeds, ")
    assert " checks, 0 failures in " in line


def test_a_failing_seed_is_printed_with_the_command_that_shows_its_log() -> None:
    said = run("--seeds", "0:8", "--bug", BUG)
    assert said.code == 1
    assert ": credits: " in said.out
    (again, *_) = [line for line in said.out.splitlines() if line.startswith("  make fuzz")]
    repeated = run(*arguments_of(again))
    assert repeated.code == 1
    assert "earlier lines" not in repeated.out
    assert "violation" in repeated.out
    assert " 1 failures in " in repeated.out.splitlines()[-1]


def test_a_single_seed_prints_its_event_log() -> None:
    said = run("--seeds", "3")
    assert said.code == 0
    assert "  admit       g00000000" in said.out
    assert said.out.splitlines()[-2] == "every promise was kept"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "x"), "SEEDS=x is neither A:B, such as 0:1000, nor a single seed"),
        (("--seeds=-1:3",), "SEEDS=-1:3 is neither A:B"),
        (("--seeds", "4:4"), "SEEDS=4:4 names no seed"),
        (("--bug", "nope"), "there is no bug 'nope'; the bugs are skip-eviction"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run(*arguments))


def test_an_interrupted_search_counts_the_seeds_that_it_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def until_interrupted(seeds: range, *, bug: str | None = None) -> Iterator[Result]:
        yield from fuzz(seeds[:2], bug=bug)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "fuzz", until_interrupted)
    said = run("--seeds", "0:1000")
    assert said.code == 1
    (line,) = said.out.splitlines()
    assert line.startswith("2 seeds, ")
    assert line.endswith(", interrupted")


def test_in_a_terminal_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=120, force_terminal=True, file=StringIO())
    monkeypatch.setattr(command, "console", lambda: terminal)
    assert run("--seeds", "0:3").code == 0
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in shown
    assert " failures" in shown
