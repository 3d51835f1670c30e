"""Numbers in text: exact, in every form, and in linear time."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.rewards.text import is_close, last_boxed, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234,567.89", Fraction(123456789, 100)),
        ("1\u202f234 apples", Fraction(1234)),
        ("1,2,3", Fraction(3)),
        ("12,3456", Fraction(3456)),
        ("-.5e-2", Fraction(-5, 1000)),
        ("\u22123", Fraction(-3)),
        ("-$5", Fraction(-5)),
        ("7-3", Fraction(3)),
        ("(7)-3", Fraction(3)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("50%", Fraction(50)),
        ("6 / 8.", Fraction(3, 4)),
        ("on 10/20/2024", Fraction(2024)),
        ("...7", Fraction(7)),
        ("1.2.3", Fraction(6, 5)),
        ("x2", None),
        ("3/0", None),
        ("1e999999999", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: Fraction | None) -> None:
    assert last_number(text) == number


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=3
    ),
    st.text(alphabet="abc =:\n", max_size=20),
)
def test_a_number_is_read_as_it_was_written(number: object, words: str) -> None:
    for written in (f"{number}", f"{number:,}", f"${number}$"):
        assert last_number(f"3 {words} {written}. {words}") == Fraction(str(number))


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_a_fraction_is_read_in_both_forms(top: int, bottom: int) -> None:
    assert last_number(f"x = {top}/{bottom}") == Fraction(top, bottom)
    assert last_number(rf"\frac{{{top}}}{{{bottom}}}") == Fraction(top, bottom)


@given(st.text(alphabet="0123456789.,+-/eE$ \\{}frac\u00a0\u2212x", max_size=60))
def test_no_text_breaks_the_reading_of_numbers(text: str) -> None:
    number = last_number(text)
    assert number is None or is_close(number, number, 0.0, 0.0)


def test_reading_takes_time_linear_in_the_text() -> None:
    """Quadratic reading of these would take minutes."""
    assert last_boxed(r"\boxed{" * 100_000) is None
    assert last_number("1," * 100_000) == 1
    assert last_number("1/" * 100_000) == 1
    assert last_number("-" * 100_000) is None
