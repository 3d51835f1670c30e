"""`rollart simulate`: comparisons of schedules, over real simulations of a few devices."""

import json
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rollart_flow.cli import comparison
from rollart_flow.cli.comparison import ComparisonProgress, showing_cases
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.loading import SCENARIOS
from rollart_flow.simulation.record import Record, StepTimes
from rollart_flow.simulation.report.comparison import DEFAULT_SCHEDULES, Case
from tests.cli.shell import refused, rollart

ROOT = Path(__file__).parents[2]
TINY = """
from dataclasses import replace
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B, QWEN3_32B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_MATH

scenario = Scenario(
    "tiny", QWEN3_8B, (GEM_MATH, FROZEN_LAKE), (Pool(H20, 2),), Pool(H800, 2),
    batch_size=16, group_size=4,
)
"""
QUICK = ("--steps", "2", "-S", "rollart(1)")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return written(tmp_path)


def written(folder: Path, more: str = "", name: str = "tiny.py") -> str:
    path = folder / name
    path.write_text(TINY + more)
    return str(path)


def test_json_has_a_row_for_each_seed_and_schedule(tiny: str) -> None:
    words = ("-S", "sync_plus", "-S", "rollart(1)", "--seed", "0", "--seed", "3", "--steps", "3")
    said = rollart("simulate", tiny, *words, "--json")
    assert (said.code, said.err) == (0, "")
    rows = json.loads(said.out)
    assert [(row["seed"], row["schedule"]) for row in rows] == [
        (0, "sync_plus"), (0, "rollart(alpha=1)"), (3, "sync_plus"), (3, "rollart(alpha=1)"),
    ]  # fmt: skip
    for row in rows:
        assert row["scenario"] == "tiny"
        assert row["bound_step_s"] <= row["step_s"]
        assert row["staleness_max"] == max(map(int, row["staleness"]))
        assert row["wasted_fraction"] == pytest.approx(sum(row["wasted"].values()))
        assert row["ratio"] is row["published"] is None
        assert set(row["utilization"]) == {"H20", "training"}
        assert set(row["represented"]) == {"gem-math", "frozenlake"}
        assert row["propositions"]["sync_s"] > 0
    assert [row["staleness_max"] for row in rows] == [0, 1, 0, 1]
    assert rows[1]["throughput"] > rows[0]["throughput"]
    assert rows[0]["step_s"] != rows[2]["step_s"]


def test_the_same_words_give_the_same_text(tiny: str) -> None:
    words = (tiny, *QUICK)
    assert rollart("simulate", *words).out == rollart("simulate", *words).out


def test_the_former_sub_command_is_still_understood(tiny: str) -> None:
    words = (tiny, *QUICK)
    assert rollart("simulate", "compare", *words) == rollart("simulate", *words)


def test_four_schedules_are_compared_by_default(tiny: str) -> None:
    said = rollart("simulate", tiny, "--steps", "1")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines() if line.startswith(" tiny ")]
    schedules = [words[1] for words in lines]
    assert schedules == ["sync_plus", "one_off", "areal(alpha=1)", "rollart(alpha=1)"]
    assert len(DEFAULT_SCHEDULES) == 4
    assert "upper bounds" not in said.out
    assert max(map(len, said.out.splitlines())) <= 120
    assert "…" not in said.out


def test_a_single_row_and_details_say_where_time_and_tokens_went(tiny: str) -> None:
    alone = rollart("simulate", tiny, *QUICK).out
    both = rollart("simulate", tiny, *QUICK, "-S", "one_off", "--details").out
    for expected in (
        "training waits    batch and weights", "wasted tokens     none",
        "share of domains  gem-math", "longest chain", "ROLL Flash,", "Propositions 1 and 2",
    ):  # fmt: skip
        assert expected in alone
        assert expected in both
    assert both.count("upper bounds") == 2


def test_a_file_may_have_several_scenarios(tmp_path: Path) -> None:
    more = "scenarios = [replace(scenario, name=f'tiny{n}', batch_size=n) for n in (8, 16)]\n"
    path = written(tmp_path, more + "del scenario\n")
    rows = json.loads(rollart("simulate", path, *QUICK, "--json").out)
    assert [row["scenario"] for row in rows] == ["tiny8", "tiny16"]


def test_a_file_that_is_called_like_a_scenario_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, name="fuzz.py")
    written(tmp_path, name="small")
    for word in ("./fuzz.py", "fuzz.py", "./small"):
        (row,) = json.loads(rollart("simulate", word, *QUICK, "--json").out)
        assert row["scenario"] == "tiny"


def test_help_lists_options_and_scenarios() -> None:
    said = rollart("simulate", "--help").out
    assert rollart("simulate").out == said
    assert "rollart simulate [OPTIONS]" in said
    for expected in ("--schedule", "--seed", "--plot", *SCENARIOS):
        assert expected in said


def test_named_scenarios_are_called_by_their_names() -> None:
    assert {name: make().name for name, make in SCENARIOS.items()} == {
        name: name for name in SCENARIOS
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("smal",), "no scenario 'smal' (did you mean small?): take one of small, swe, mix"),
        (("none.py",), "none.py: no such scenario file"),
        (("small", "-S", "rolart"), "(did you mean rollart?)"),
        (("small", "-S", "rollart(-1)"), "alpha is -1"),
        (("small", "--steps", "0"), "Invalid value for '--steps'"),
        (("small", "--from", "run"), "--from run takes the place of a scenario; leave small out"),
        (("--json",), "nothing to simulate: name a scenario, or a run with --from RUN"),
        (("small", "--batch-size", "8"), "--batch-size changes a run, with --from RUN"),
        (("--from", "none"), "no run"),
        (("small", "--plot", "a.png"), "--plot a.png: pictures are SVG only"),
        (("small", "--plot", "none/a.svg"), "--plot none/a.svg: there is no folder none"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(rollart("simulate", *arguments))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("del scenario", "no `scenario` at module level"),
        ("scenario = 3", "a scenario is a int, not a Scenario"),
        ("del scenario\nscenarios = 3", "`scenarios` is a int"),
        ("del scenario\nscenarios = []", "`scenarios` is empty"),
        ("scenario = Scenaro()", ":11: NameError: name 'Scenaro' is not defined"),
        (
            "scenario = replace(scenario, model=QWEN3_32B, rollout=(Pool(H800, 2),))",
            ":11: scenario tiny: Qwen3-32B on 1 H800 has room for 24",
        ),
        ("scenario = replace(scenario, group_size=3)", ":11: batch_size is 16"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_with_its_place(
    more: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, more)
    line = refused(rollart("simulate", path))
    assert line.startswith(path)
    assert message in line


def test_a_simulation_that_fails_is_exit_code_1_and_prints_the_finished_runs(
    tmp_path: Path,
) -> None:
    more = (
        "bad = replace(GEM_MATH, name='bad', failure=1.0)\n"
        "scenarios = [scenario, replace(scenario, name='failing', domains=(bad,))]\n"
        "del scenario\n"
    )
    said = rollart("simulate", written(tmp_path, more), *QUICK, "--json")
    assert said.code == 1
    assert [row["scenario"] for row in json.loads(said.out)] == ["tiny"]
    (line,) = said.err.splitlines()
    assert line.startswith("error: failing, rollart(alpha=1), seed 0: ")
    assert "this is a bug" not in line


def test_a_picture_has_every_run(tiny: str, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    said = rollart("simulate", tiny, *QUICK, "-S", "one_off", "--plot", str(picture))
    assert f"drawn in {picture}" in said.out
    texts = {text.text for text in ElementTree.parse(picture).iter()}
    assert {"tiny, rollart(alpha=1), seed 0", "tiny, one_off, seed 0"} <= texts


def test_an_interrupt_prints_the_finished_runs(tmp_path: Path) -> None:
    more = (
        "class Loud(type(scenario.transfer)):\n"
        "    def push_s(self, model):\n"
        "        print('pushed', flush=True)\n"
        "        return 1.0\n"
        "many = replace(scenario, name='many', batch_size=128, transfer=Loud())\n"
        "scenarios = [scenario, many]\n"
        "del scenario\n"
    )
    code = "import sys; from rollart_flow.cli import main; sys.exit(main())"
    words = ("simulate", written(tmp_path, more), "--steps", "8", "-S", "one_off", "--json")
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "pushed\n"  # the second scenario is under way
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "error: interrupted; 1 of 2 were simulated\n"
    (row,) = json.loads(out.replace("pushed\n", ""))
    assert row["scenario"] == "tiny"


def a_case(name: str) -> Case:
    from rollart_flow.control.schedule.schedules import one_off

    return Case(SCENARIOS[name](), one_off(), 0)


def test_progress_counts_steps_and_estimates_the_remaining_time() -> None:
    progress = ComparisonProgress(runs=2, steps=4)
    assert progress.left_s(3.0) is None
    first, second = Record(), Record()
    progress.start(a_case("small"), first)
    first.steps = [StepTimes(step, 0, 0, 0, 0, 0) for step in (1, 2)]
    assert (progress.done, progress.left_s(3.0)) == (2, 9.0)
    first.steps *= 2
    progress.start(a_case("swe"), second)
    assert (progress.begun, progress.done, progress.title) == (2, 4, "swe, one_off, seed 0")


def test_a_terminal_sees_progress_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, quiet, shown in ((True, False, True), (True, True, False), (False, False, False)):
        screen = Console(width=120, force_terminal=terminal, file=StringIO())
        monkeypatch.setattr(comparison, "console", lambda screen=screen: screen)
        with showing_cases(2, 4, quiet=quiet) as on_start:
            on_start(a_case("small"), Record())
        text = screen.file.getvalue()  # type: ignore[attr-defined]
        assert ("small, one_off, seed 0" in text) is shown
        assert bool(text) is shown


def test_settings_of_a_scenario_file_raise_for_python_too(tmp_path: Path) -> None:
    from rollart_flow.simulation.loading import load_scenarios

    with pytest.raises(SettingsError, match="no such scenario file"):
        load_scenarios(str(tmp_path / "none.py"))


def test_a_stored_run_predicts_itself_and_other_settings() -> None:
    run = str(Path(__file__).parents[1] / "simulation" / "data" / "two-domains")
    brief = ("simulate", "--from", run, "--steps", "8")
    said = rollart(*brief, "--details")
    assert said.code == 0
    assert "measured: " in said.out
    own = json.loads(rollart(*brief, "--json").out)[0]
    assert own["schedule"] == "rollart(alpha=1)"
    redundant = rollart(*brief, "--redundancy", "2", "--json")
    assert json.loads(redundant.out)[0]["wasted_fraction"] > own["wasted_fraction"]
    both = rollart(*brief, "-S", "sync_plus", "-S", "rollart(2)", "--json")
    serial, looser = json.loads(both.out)
    assert serial["step_s"] > looser["step_s"]
    assert looser["staleness_max"] <= 2
