"""Checks of settings: which values pass, and what the one-line error says."""

from collections.abc import Callable

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.validation import check_choice, check_count, check_flag, check_kind, check_number


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_number("lr", "1", low=0), r"lr='1': expected a number at least 0"),
        (lambda: check_number("lr", True, low=0), r"lr=True: expected a number at least 0"),
        (lambda: check_number("lr", float("nan"), low=0), r"lr=nan: expected a number"),
        (lambda: check_number("lr", 0, low=0, open_low=True), r"lr=0: expected a number above 0"),
        (lambda: check_number("p", 2, low=0, high=1), r"at least 0 and at most 1"),
        (lambda: check_count("ranks", 0, low=1), r"ranks=0: expected a whole number of at least 1"),
        (lambda: check_count("ranks", 1.5, low=1), r"ranks=1.5: expected a whole number"),
        (lambda: check_choice("over", "c", ("b", "a")), r"over='c': expected one of a, b"),
        (lambda: check_flag("mismatch", 1), r"mismatch=1: expected True or False"),
        (lambda: check_kind("critic", 3, dict), r"critic=3: expected a dict"),
        (lambda: check_kind("critic", dict, dict), r"expected a dict; call it: dict\(\)"),
    ],
)  # fmt: skip
def test_a_value_that_is_refused_is_named_with_what_it_may_be(
    check: Callable[[], None], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        check()
    assert "\n" not in str(raised.value)


def test_values_within_their_ranges_pass() -> None:
    check_number("lr", 0, low=0)
    check_number("p", 1, low=0, high=1, open_low=True)
    check_count("ranks", 1, low=1)
    check_choice("over", "a", ("b", "a"))
    check_flag("mismatch", False)
    check_kind("critic", None, dict, optional=True)
