r"""Extraction of the last number of a text, as an exact fraction.

The parser accepts signs, decimals, exponents, thousands separated by commas or by narrow or
no-break spaces, and fractions, including LaTeX's `\frac`. It ignores a percent sign or a unit after
a number; digits after a letter, as in "x2", are not a number.

Invariant: parsing takes time linear in the text, and no number in the text can exhaust memory: a
number with too many digits or too large an exponent is not accepted.
"""

import re
from collections import deque
from fractions import Fraction

_LONGEST_CHARACTERS = 300
_LARGEST_EXPONENT = 400
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_UNSIGNED = r"(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\.)\.\d+)"
_DECIMAL = rf"{_UNSIGNED}(?:[eE][+-]?\d+)?"
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)\]])[+\-\u2212]\$?)?(?<!\w)(?<!\d\.)"
    rf"(?P<chain>{_DECIMAL}(?:\s?/\s?{_DECIMAL})*)",
    re.ASCII,
)
_SEPARATORS = re.compile("[,\u00a0\u2009\u202f]")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text; None if there is none, or if it is too large."""
    found = deque(_NUMBER.finditer(_FRACTION.sub(r"\1/\2", text)), maxlen=1)
    if not found:
        return None
    match = found.pop()
    terms = [_decimal(term.strip()) for term in match["chain"].split("/")]
    top, bottom = terms if len(terms) == 2 else (terms[-1], Fraction(1))  # three are a date
    if top is None or not bottom:
        return None
    return -(top / bottom) if (match["sign"] or "+")[0] != "+" else top / bottom


def is_close(given: Fraction, expected: Fraction, relative: float, absolute: float) -> bool:
    """Return whether two numbers differ by at most the larger of two tolerances, exactly.

    Args:
        given: the answer.
        expected: the expected number, to which `relative` applies.
        relative: relative tolerance, from 0.
        absolute: absolute tolerance, from 0.
    """
    allowed = max(Fraction(str(relative)) * abs(expected), Fraction(str(absolute)))
    return abs(given - expected) <= allowed


def _decimal(text: str) -> Fraction | None:
    digits = _SEPARATORS.sub("", text)
    exponent = re.split("[eE]", digits)[1:]
    if len(digits) > _LONGEST_CHARACTERS or any(abs(int(e)) > _LARGEST_EXPONENT for e in exponent):
        return None
    return Fraction(digits)
