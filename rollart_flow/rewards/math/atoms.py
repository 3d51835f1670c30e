"""The parts of an expression that hold together: numbers, names, functions, brackets, matrices."""

from abc import ABC, abstractmethod
from fractions import Fraction

from rollart_flow.rewards.math.tokens import Token
from rollart_flow.rewards.math.tree import Expression, UnreadableError, negative, number, quotient

_OPENING = {"(": ")", "[": "]", r"\{": r"\}"}
_FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "ln": "log", "log": "log",
    "exp": "exp", "sqrt": "sqrt", "abs": "abs",
}  # fmt: skip
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
_CONSTANTS = {
    r"\pi": "pi", "pi": "pi", r"\infty": "oo", "infinity": "oo", "inf": "oo", "e": "e", "i": "i",
}  # fmt: skip
_GREEK = frozenset(
    "\\" + name
    for name in (
        "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "theta", "lambda", "mu", "nu",
        "rho", "sigma", "tau", "phi", "varphi", "omega", "ell",
    )
)  # fmt: skip
_LONGEST_PRODUCT = 2
"""Letters that may stand side by side as a product; longer words are words."""


class AtomParser(ABC):
    """Reads one token after another; sums, products and powers are its subclass's."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._place = 0
        self._bars = 0
        """Absolute values that are open."""

    @property
    def left(self) -> bool:
        """Whether tokens are left."""
        return self._place < len(self._tokens)

    def _peek(self, ahead: int = 0) -> str:
        place = self._place + ahead
        return self._tokens[place].text if place < len(self._tokens) else ""

    def _next(self) -> Token:
        if not self.left:
            raise UnreadableError("the text ends within an expression")
        self._place += 1
        return self._tokens[self._place - 1]

    def _takes(self, *texts: str) -> str:
        """Take the next token if it is one of these; return it, or an empty text."""
        found = self._peek()
        if found and found in texts:
            self._place += 1
            return found
        return ""

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise UnreadableError(f"{text!r} is missing")

    @abstractmethod
    def items(self) -> list[Expression]:
        """Read expressions that commas, semicolons, "and" or "or" separate."""

    @abstractmethod
    def _relation(self) -> Expression:
        """Read one expression, up to what separates it."""

    @abstractmethod
    def _signed(self) -> Expression:
        """Read a factor with its sign."""

    @abstractmethod
    def _power(self) -> Expression:
        """Read a factor without a sign."""

    @abstractmethod
    def _script(self) -> Expression:
        """Read an exponent."""

    def _starts(self) -> bool:
        """Whether the next token begins a factor without a sign before it."""
        if not self.left:
            return False
        token = self._tokens[self._place]
        if token.value is not None:
            raise UnreadableError("two numbers stand side by side")
        if token.word:
            return token.text not in ("and", "or")
        if token.text == "|":
            return not self._bars
        known = {"(", "[", r"\{", "{", r"\frac", r"\sqrt", r"\binom", *_CONSTANTS, *_GREEK}
        return token.text in known or token.text.lstrip("\\") in _FUNCTIONS

    def _group(self) -> Expression:
        """Read an argument of a command: a group in braces, or one digit, letter or command."""
        if self._takes("{"):
            found = self._relation()
            self._expect("}")
            return found
        token = self._tokens[self._place] if self.left else None
        if token is not None and token.integer and len(token.text) > 1:  # \frac12
            rest = Token(token.text[1:], Fraction(token.text[1:]), True)
            self._tokens[self._place : self._place + 1] = [rest]
            return number(int(token.text[0]))
        return self._atom()

    def _atom(self) -> Expression:
        token = self._next()
        text = token.text
        if token.value is not None:
            return self._numeral(token)
        if text in _OPENING:
            return self._bracketed(text)
        if text == "{":
            self._place -= 1
            return self._group()
        if text == "|":
            self._bars += 1
            found = self._relation()
            self._bars -= 1
            self._expect("|")
            return Expression("abs", (found,))
        if text == r"\emptyset":
            return Expression("list", (), "{}")
        if text == r"\begin":
            return self._matrix()
        return self._command(text) if text[0] == "\\" else self._word(token)

    def _command(self, text: str) -> Expression:
        if text == r"\frac":
            top = self._group()
            return quotient(top, self._group())
        if text == r"\binom":
            top = self._group()
            return Expression("call", (top, self._group()), "binomial")
        if text == r"\sqrt":
            degree = number(2)
            if self._takes("["):
                degree = self._relation()
                self._expect("]")
            return Expression("root", (self._group(), degree))
        if text in _CONSTANTS:
            return Expression("constant", (), _CONSTANTS[text])
        if text in _GREEK:
            return self._symbol(text)
        if text[1:] in _FUNCTIONS:
            return self._function(text[1:])
        raise UnreadableError(f"{text} is unknown")

    def _word(self, token: Token) -> Expression:
        text = token.text
        if text in _CONSTANTS:
            return Expression("constant", (), _CONSTANTS[text])
        if text in _FUNCTIONS:
            return self._function(text)
        if not token.word or not text.isalpha() or len(text) > _LONGEST_PRODUCT:
            raise UnreadableError(f"{text!r} is no part of an expression")
        if len(text) > 1:
            rest = [Token(letter, word=True) for letter in text[1:]]
            self._tokens[self._place : self._place] = rest
            if text[0] in _CONSTANTS:
                return Expression("constant", (), _CONSTANTS[text[0]])
        return self._symbol(text[0])

    def _symbol(self, name: str) -> Expression:
        if self._takes("_"):
            name += f"_{self._index()}"
        return Expression("symbol", (), name)

    def _index(self) -> str:
        if not self._takes("{"):
            return self._next().text
        parts = []
        while self._peek() not in ("}", ""):
            parts.append(self._next().text)
        self._expect("}")
        return "".join(parts)

    def _numeral(self, token: Token) -> Expression:
        assert token.value is not None
        if token.integer and self._takes("_"):
            return _in_base(token.text, self._index())
        found = number(token.value)
        if not token.integer:
            return found
        following = self._tokens[self._place : self._place + 3]
        if (
            len(following) == 3
            and following[1].text == "/"
            and all(it.integer for it in following[::2])
        ):
            self._place += 3
            top, bottom = (number(it.value or 0) for it in following[::2])
            return Expression("add", (found, quotient(top, bottom)))
        if self._peek() == r"\frac":
            part = self._power()
            mixed = part.op == "mul" and not part.symbols() and _is_proper(part)
            return Expression("add" if mixed else "mul", (found, part))
        return found

    def _bracketed(self, opening: str) -> Expression:
        bars, self._bars = self._bars, 0
        found = [] if self._peek() == _OPENING[opening] else self.items()
        self._bars = bars
        closing = self._next().text
        if opening == r"\{" or closing == r"\}":
            if (opening, closing) != (r"\{", r"\}"):
                raise UnreadableError("brackets do not match")
            return Expression("list", tuple(found), "{}")
        if closing not in (")", "]"):
            raise UnreadableError("brackets do not match")
        if len(found) == 1 and _OPENING[opening] == closing:
            return found[0]
        return Expression("list", tuple(found), opening + closing)

    def _function(self, name: str) -> Expression:
        base: Expression | None = None
        exponent: Expression | None = None
        if name == "log" and self._takes("_"):
            base = self._group()
        if self._takes("^"):
            exponent = self._script()
        if exponent == negative(number(1)) and name in _INVERSES:
            name, exponent = _INVERSES[name], None
        argument = self._argument()
        known = _FUNCTIONS[name]
        if known == "sqrt":
            found = Expression("root", (argument, number(2)))
        elif known == "abs":
            found = Expression("abs", (argument,))
        else:
            found = Expression("call", (argument,), known)
            if base is not None:
                found = quotient(found, Expression("call", (base,), "log"))
        return found if exponent is None else Expression("pow", (found, exponent))

    def _argument(self) -> Expression:
        if self._peek() in ("(", "{"):
            return self._atom()
        found = self._signed()
        while self._starts() and self._peek().lstrip("\\") not in _FUNCTIONS:
            if self._peek() in _OPENING:
                break
            found = Expression("mul", (found, self._power()))
        return found

    def _matrix(self) -> Expression:
        name = self._environment()
        if not name.endswith("matrix"):
            raise UnreadableError(f"{name} is unknown")
        rows: list[Expression] = []
        row = [self._relation()]
        while sign := self._takes("&", r"\\"):
            if sign == "&":
                row.append(self._relation())
                continue
            rows.append(Expression("list", tuple(row), "row"))
            if self._peek() == r"\end":
                row = []
                break
            row = [self._relation()]
        if row:
            rows.append(Expression("list", tuple(row), "row"))
        self._expect(r"\end")
        self._environment()
        return Expression("matrix", tuple(rows))

    def _environment(self) -> str:
        self._expect("{")
        name = self._next().text
        self._expect("}")
        return name


def _is_proper(part: Expression) -> bool:
    """Whether a quotient has whole numbers above and below, the smaller one above."""
    top, inverse = part.args
    bottom = inverse.args[0] if inverse.op == "inverse" else inverse
    values = [it.value for it in (top, bottom) if it.op == "number"]
    return len(values) == 2 and values[0] < values[1]  # type: ignore[operator]  # of numbers


def _in_base(digits: str, base: str) -> Expression:
    if not base.isdecimal() or not 2 <= int(base) <= 36:
        raise UnreadableError("a base is from 2 to 36")
    try:
        return number(int(digits, int(base)))
    except ValueError as error:
        raise UnreadableError(str(error)) from error
