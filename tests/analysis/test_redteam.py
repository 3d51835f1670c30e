"""The red-team report finds what was planted in a run, for the right reasons, and no more."""

from pathlib import Path

import pytest

from rollart_flow.analysis.redteam import RULES, RedTeamReport, Suspect, red_team
from rollart_flow.store import Run, RunStatus
from tests.analysis.planted import PLANTED, STEP, planted_run
from tests.runs import new_writer, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that all of these read."""
    return planted_run(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def report(run: Run) -> RedTeamReport:
    """Its report, with room for all."""
    return red_team(run, top=1000)


def suspect(report: RedTeamReport, name: str) -> Suspect:
    return next(found for found in report.trajectories if found.trajectory_id == name)


def test_each_rule_fires_on_what_was_planted_for_it_and_on_nothing_else(
    report: RedTeamReport,
) -> None:
    assert {found.trajectory_id: set(found.fired) for found in report.trajectories} == PLANTED
    assert {rule.name for rule in RULES} == set().union(*PLANTED.values())


def test_it_counts_what_it_looked_at(run: Run, report: RedTeamReport) -> None:
    assert report.run == "planted"
    assert report.scored == len(run.trajectories.collect()) - 2  # unscored, and an evaluation's
    assert report.suspicious == len(PLANTED)
    fired = {rule.name: rule.trajectories for rule in report.rules}
    assert fired["same_everywhere"] == 5
    assert fired["short"] == fired["truncated"] == 2
    assert sum(fired.values()) == sum(len(rules) for rules in PLANTED.values())


def test_figures_say_by_how_much(report: RedTeamReport) -> None:
    assert suspect(report, "short").fired["short"] == {
        "tokens": 5, "usual_tokens": 40.0, "excess": 1.0,
    }  # fmt: skip
    assert suspect(report, "loop").fired["repeats_actions"] == {"turns": 8, "same_action": 1.0}
    assert suspect(report, "copied-0").fired["same_everywhere"] == {"alike": 5}
    assert suspect(report, "shaped").fired["parts_disagree"] == {
        "process_part": 0.25, "best_process": 0.0, "outcome_part": 0.0,
    }  # fmt: skip
    assert suspect(report, "leap-v2-0").fired["reward_jump"] == {"rise": 1.0, "evaluated": -0.25}
    # 47 grams of 4 words over a cycle of 5
    assert suspect(report, "babble").fired["repeats_words"] == {
        "repeated": pytest.approx(1 - 5 / 47)
    }


def test_a_suspect_says_where_it_stands(report: RedTeamReport) -> None:
    short, leap = suspect(report, "short"), suspect(report, "leap-v2-1")
    assert (short.domain, short.step, short.policy_version, short.reward) == ("math", STEP, 0, 1.0)
    assert (leap.domain, leap.step, leap.policy_version, leap.reward) == ("leap", None, 2, 1.0)


def test_the_most_suspicious_come_first(run: Run) -> None:
    report = red_team(run, top=2)
    assert report.suspicious == len(PLANTED)
    assert [found.trajectory_id for found in report.trajectories] == ["two-things", "babble"]


def test_runs_with_nothing_to_see_have_no_suspects(tmp_path: Path) -> None:
    assert red_team(small_run(tmp_path)).trajectories == ()
    new_writer(tmp_path, "empty").close(RunStatus.FINISHED)
    empty = red_team(Run(str(tmp_path / "empty")))
    assert (empty.scored, empty.suspicious, empty.trajectories) == (0, 0, ())
