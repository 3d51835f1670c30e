"""`rollart simulate fuzz`: what it prints, and its exit codes."""

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from rollart_flow.cli import fuzz as command
from rollart_flow.simulation.fuzz import Result, fuzz
from tests.cli.shell import refused, rollart

BUG = "return-two-credits"


def test_all_hold() -> None:
    said = rollart("simulate", "fuzz", "--seeds", "0:3")
    assert said.code == 0
    assert said.out.startswith("3 seeds in ")
    assert said.out.endswith(" checks of the invariants: all hold\n")


def test_a_failing_seed_is_told_with_the_command_that_repeats_it() -> None:
    said = rollart("simulate", "fuzz", "--seeds", "0:8", "--bug", BUG)
    assert said.code == 1
    assert "credits: " in said.out
    (again, *_) = [line for line in said.out.splitlines() if line.startswith("rollart simulate")]
    repeated = rollart(*again.split()[1:])
    assert repeated.code == 1
    assert "earlier lines" not in repeated.out
    assert "violation" in repeated.out


def test_the_log_of_a_run_that_holds() -> None:
    said = rollart("simulate", "fuzz", "--seeds", "3", "--log")
    assert said.code == 0
    assert "  admit       g00000000" in said.out
    assert "every promise was kept" in said.out


def test_json_is_a_list_with_one_entry_for_each_seed() -> None:
    said = rollart("simulate", "fuzz", "--seeds", "0:4", "--bug", BUG, "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert [each["seed"] for each in found] == [0, 1, 2, 3]
    assert set(found[0]) == {"seed", "ok", "error", "command"}
    assert all(each["ok"] == (each["error"] is None) for each in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "x"), "--seeds 'x' is neither A:B, such as 0:1000, nor a single seed"),
        (("--seeds", "-1:3"), "--seeds '-1:3' is neither A:B"),
        (("--seeds", "4:4"), "--seeds '4:4' names no seed"),
        (("--bug", "nope"), "there is no bug 'nope'; the bugs are skip-eviction"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(rollart("simulate", "fuzz", *arguments))


def test_an_interrupted_run_tells_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_interrupted(seeds: range, *, bug: str | None = None) -> Iterator[Result]:
        yield from fuzz(seeds[:2], bug=bug)
        raise KeyboardInterrupt

    monkeypatch.setattr("rollart_flow.simulation.fuzz.fuzz", until_interrupted)
    said = rollart("simulate", "fuzz", "--seeds", "0:1000")
    assert said.code == 1
    assert said.out.startswith("interrupted after 2 seeds in ")


def test_in_a_terminal_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=120, force_terminal=True, file=StringIO())
    monkeypatch.setattr(command, "console", lambda: terminal)
    assert rollart("simulate", "fuzz", "--seeds", "0:3").code == 0
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in shown
    assert "all hold" in shown


def test_alone_it_lists_its_commands() -> None:
    said = rollart("simulate")
    assert said.code == 0
    assert "  fuzz " in said.out
