"""What an environment may report of an attempt, and how it is bounded."""

from typing import Any

import numpy as np
import pytest

from rollart_flow.types.verdict_checks import (
    DIFF_CHARACTERS,
    MOST_SUSPICIONS,
    MOST_VERDICTS,
    checked_report,
    checked_verdicts,
)
from rollart_flow.types.verdicts import AttemptReport, Verdict, VerdictKind


def test_an_info_without_a_report_has_none() -> None:
    assert checked_report({}) is None
    assert checked_report({"success": True, "steps": 3}) is None


def test_a_report_is_in_plain_types() -> None:
    report = checked_report(
        {
            "verdicts": [
                Verdict(key="a", passed=True, seconds=0.5).as_json(),
                {"key": "style", "kind": "reward", "value": np.float32(0.5)},
                Verdict(key="b", message="line one\nline two"),
            ],
            "verifier": "9f",
            "diff": "+\ud83d",
            "suspicions": ("children_alive: 2", "children_alive: 2"),
        }
    )
    assert report == AttemptReport(
        verdicts=(
            Verdict(key="a", passed=True, seconds=0.5),
            Verdict(key="style", kind=VerdictKind.REWARD, value=0.5),
            Verdict(key="b", message="line one line two"),
        ),
        verifier="9f",
        diff="+\ufffd",
        suspicions=("children_alive: 2",),
    )


def test_of_verdicts_with_one_key_the_last_counts() -> None:
    given = [{"key": "a", "passed": False}, {"key": "b"}, {"key": "a", "passed": True}]
    found = checked_verdicts([*given, {"key": "a", "kind": "reward", "value": 1}], "verdicts")
    assert found == (
        Verdict(key="a", passed=True),
        Verdict(key="b"),
        Verdict(key="a", kind=VerdictKind.REWARD, value=1.0),
    )


def test_a_later_report_adds_to_an_earlier_one() -> None:
    first = AttemptReport(diff="+a", suspicions=("git_plumbing: reflog",))
    both = first.updated(AttemptReport(diff="", verifier="9f"))
    assert both == AttemptReport(diff="", verifier="9f", suspicions=("git_plumbing: reflog",))


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"verdicts": "all"}, "info['verdicts'] is str; it must be a list of verdicts"),
        ({"verdicts": [None]}, r"info['verdicts'][0] is None; it must be a mapping"),
        ({"verdicts": [{}]}, "info['verdicts'][0]"),
        ({"verdicts": [{"key": "a", "colour": 1}]}, "unexpected keyword argument 'colour'"),
        ({"verdicts": [{"key": 1}]}, "has int as key; it must be a text"),
        ({"verdicts": [{"key": "a", "kind": "guess"}]}, "'guess' is not a valid VerdictKind"),
        ({"verdicts": [{"key": "a", "passed": 1}]}, "has int as passed; it must be a bool or None"),
        ({"verdicts": [{"key": "a", "value": True}]}, "value: bool given; it must be a number"),
        ({"verdicts": [{"key": "a", "value": 10**400}]}, "value: inf given; it must be finite"),
        ({"verdicts": [{}] * (MOST_VERDICTS + 1)}, f"at most {MOST_VERDICTS} are stored"),
        ({"verifier": 3}, "info['verifier'] is int; it must be a text"),
        ({"diff": "x" * (DIFF_CHARACTERS + 1)}, f"at most {DIFF_CHARACTERS} are stored"),
        ({"suspicions": "network"}, "info['suspicions'] is str; it must be a list of texts"),
        ({"suspicions": [1]}, "info['suspicions'] has int; it must be a list of texts"),
    ],
)
def test_a_report_that_cannot_be_stored_is_refused(info: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        checked_report(info)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lengths_are_bounded() -> None:
    report = checked_report(
        {
            "verdicts": [{"key": "k" * 10_000, "message": "m" * 10_000}],
            "suspicions": [f"kind: {n}" for n in range(MOST_SUSPICIONS + 1)],
        }
    )
    assert report is not None
    assert report.verdicts is not None
    assert len(report.verdicts[0].key) == 500
    assert len(report.verdicts[0].message or "") == 1_000
    assert report.suspicions is not None
    assert len(report.suspicions) == MOST_SUSPICIONS
