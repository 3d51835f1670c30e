r"""Tokens of an expression in LaTeX or in plain text.

Invariant: tokens are data. No text of an answer is ever evaluated, by Python or by a library.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from rollart_flow.rewards.math.tree import UnreadableError

MOST_CHARACTERS = 1000
"""Longest text that is read as an expression."""
_LONGEST_NUMBER = 300
_LARGEST_EXPONENT = 400

_PLAIN = {
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/", "⁄": "/",
    "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ",
    "≤": "<=", "≥": ">=", "≠": "!=", "°": r"^\circ ", "±": r"\pm ", "²": "^2", "³": "^3",
    "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "…": "", "\u00a0": "\u2009",
    "\u202f": "\u2009",
}  # fmt: skip
_COMMANDS = {
    r"\cdot": "*", r"\times": "*", r"\ast": "*", r"\div": "/", r"\le": "<=", r"\leq": "<=",
    r"\leqslant": "<=", r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\lt": "<", r"\gt": ">",
    r"\ne": "!=", r"\neq": "!=", r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lvert": "|", r"\rvert": "|", r"\vert": "|",
    r"\mid": "|", r"\lbrack": "[", r"\rbrack": "]", r"\varnothing": r"\emptyset",
    r"\dbinom": r"\binom", r"\tbinom": r"\binom", r"\%": "%", r"\colon": ":",
}  # fmt: skip
_IGNORED = re.compile(
    r"(\\\\)|\\(?:left|right|bigg?[lr]?|Bigg?[lr]?|displaystyle|textstyle|limits|quad|qquad"
    r"|mathopen|mathclose|boldsymbol|hspace\{[^{}]*\}|phantom\{[^{}]*\})(?![A-Za-z])"
    r"|\\[!:;>]|\\ |~|\$|\\[()\[\]]"
)
_THOUSANDS = r"\d{1,3}(?:[,\u2009]\d{3})+(?![\d,\u2009])(?:\.\d+)?"
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_TOKEN = re.compile(
    rf"\s*(?:(?P<repeating>\d*\.\d*\\overline\s*\{{\d+\}})"
    rf"|(?P<thousands>{_THOUSANDS})|(?P<number>(?:{_NUMBER})(?:[eE][+-]?\d+(?![\w.]))?)"
    r"|(?P<text>\\(?:text|textbf|textit|mbox|mathrm|mathbf|mathit|operatorname|rm)\s*\{[^{}]*\})"
    r"|(?P<command>\\(?:[A-Za-z]+|.))|(?P<word>[A-Za-z]+)|(?P<sign><=|>=|!=|==|\*\*|\S))"
)
_SPACES = " \t\r\n\u2009"


@dataclass(frozen=True, slots=True)
class Token:
    """A number with its value, or a sign, a command or a word."""

    text: str
    value: Fraction | None = None
    integer: bool = False
    word: bool = False


def plain(text: str) -> str:
    """Return a text without what does not change its meaning, with other signs in their place."""
    text = text.replace("{,}", ",").replace(r"\,", "\u2009").replace(r"\$", "")
    for sign, meaning in _PLAIN.items():
        text = text.replace(sign, meaning)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}|\\degree(?![A-Za-z])", r"^\\circ ", text)
    kept = _IGNORED.sub(lambda match: match[1] or " ", text)
    return kept.strip(_SPACES).rstrip(_SPACES + ".,;:")


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text that `plain` returned.

    Raises:
        UnreadableError: it is too long, or has a number that is too large.
    """
    if len(text) > MOST_CHARACTERS:
        raise UnreadableError("the text is too long")
    found: list[Token] = []
    place, depth, end = 0, 0, len(text.rstrip(_SPACES))
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise UnreadableError("the text has a sign that is unknown")
        kind = match.lastgroup
        if kind == "thousands" and depth and "," in match[0]:  # in brackets a comma separates
            match = re.compile(rf"\s*(?P<number>{_NUMBER})").match(text, place)
            assert match is not None
            kind = "number"
        said = match[0].strip(_SPACES)
        found.append(_token(str(kind), said))
        depth += {"(": 1, "[": 1, r"\{": 1, ")": -1, "]": -1, r"\}": -1}.get(found[-1].text, 0)
        place = match.end()
    return found


def _token(kind: str, said: str) -> Token:
    if kind in ("number", "thousands"):
        return Token(said, _decimal(re.sub("[,\u2009]", "", said)), said.isdecimal())
    if kind == "repeating":
        return Token(said, _repeating(said))
    if kind == "text":
        inner = said[said.index("{") + 1 : -1].strip()
        return Token(inner, word=True)
    if kind == "word":
        return Token(said, word=True)
    return Token(_COMMANDS.get(said, {"**": "^", "==": "="}.get(said, said)))


def _decimal(digits: str) -> Fraction:
    exponent = re.split("[eE]", digits)[1:]
    if len(digits) > _LONGEST_NUMBER or any(abs(int(it)) > _LARGEST_EXPONENT for it in exponent):
        raise UnreadableError("a number is too large")
    return Fraction(digits.rstrip(".") if not exponent else digits)


def _repeating(said: str) -> Fraction:
    r"""Return the value of digits such as 0.1\overline{6}."""
    head, _, digits = said.partition(r"\overline")
    digits = digits.strip(" {}")
    if len(said) > _LONGEST_NUMBER:
        raise UnreadableError("a number is too large")
    places = len(head) - head.index(".") - 1
    start = Fraction(head + "0") if head != "." else Fraction(0)
    return start + Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
