"""A parser of expressions in LaTeX or in plain text, by recursive descent.

Where plain text has two meanings, the one of school mathematics holds: `1/2x` is half of x, `2^10`
is 1024 with or without braces, `1 1/2` is one and a half, and two letters side by side are a
product.
"""

from rollart_flow.rewards.math.atoms import AtomParser
from rollart_flow.rewards.math.tokens import tokens
from rollart_flow.rewards.math.tree import Expression, UnreadableError, negative, number, quotient

_DEEPEST = 30
_RELATIONS = {"=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": "<", ">=": "<="}


def parse(text: str) -> Expression:
    """Return the tree of a text that `tokens.plain` returned.

    Raises:
        UnreadableError: it is no expression.
    """
    parser = _Parser(tokens(text))
    found = parser.items()
    if parser.left:
        raise UnreadableError("the text goes on after an expression")
    return found[0] if len(found) == 1 else Expression("list", tuple(found), "")


class _Parser(AtomParser):
    _depth = 0

    def items(self) -> list[Expression]:
        """Read expressions that commas, semicolons, "and" or "or" separate."""
        found = [self._relation()]
        while self._takes(",", ";", "and", "or"):
            self._takes("and", "or")
            found.append(self._relation())
        return found

    def _relation(self) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("the expression is nested too deeply")
        sides, signs = [self._union()], []
        while sign := self._takes(*_RELATIONS, r"\in"):
            signs.append(sign)
            sides.append(self._union())
        self._depth -= 1
        if not signs:
            return sides[0]
        if signs == [r"\in"]:
            return sides[1]
        parts = [
            Expression(
                "relation", (right, left) if sign[0] == ">" else (left, right), _RELATIONS[sign]
            )
            for sign, left, right in zip(signs, sides, sides[1:], strict=False)
            if sign in _RELATIONS
        ]
        if len(parts) < len(signs):
            raise UnreadableError("a relation is mixed with membership")
        return parts[0] if len(parts) == 1 else Expression("list", tuple(parts), "chain")

    def _union(self) -> Expression:
        found = [self._sum()]
        while self._takes(r"\cup"):
            found.append(self._sum())
        return found[0] if len(found) == 1 else Expression("union", tuple(found))

    def _sum(self) -> Expression:
        terms = [self._product()]
        while sign := self._takes("+", "-", r"\pm", r"\mp"):
            term = self._product()
            if sign in (r"\pm", r"\mp"):
                terms = [
                    Expression("choice", (_added([*terms, term]), _added([*terms, negative(term)])))
                ]
            else:
                terms.append(negative(term) if sign == "-" else term)
        return _added(terms)

    def _product(self) -> Expression:
        found = self._signed()
        while True:
            if self._takes("*"):
                found = Expression("mul", (found, self._signed()))
            elif self._takes("/"):
                found = quotient(found, self._signed())
            elif self._starts():
                found = Expression("mul", (found, self._power()))
            else:
                return found

    def _signed(self) -> Expression:
        minus, choice = False, False
        while sign := self._takes("+", "-", r"\pm"):
            minus, choice = minus != (sign == "-"), choice or sign == r"\pm"
        found = self._power()
        if choice:
            return Expression("choice", (found, negative(found)))
        return negative(found) if minus else found

    def _power(self) -> Expression:
        base = self._atom()
        while True:
            if self._takes("!"):
                base = Expression("factorial", (base,))
            elif self._takes("%"):
                base = Expression("percent", (base,))
            elif self._takes("^"):
                if self._takes(r"\circ"):
                    degrees = quotient(Expression("constant", (), "pi"), number(180))
                    base = Expression("mul", (base, degrees))
                else:
                    base = Expression("pow", (base, self._script()))
            else:
                return base

    def _script(self) -> Expression:
        """Read an exponent: a group, or what one sign says."""
        minus = bool(self._takes("-"))
        found = self._group() if self._peek() == "{" else self._atom()
        if not minus and self._peek() == "^":
            self._place += 1
            found = Expression("pow", (found, self._script()))
        return negative(found) if minus else found


def _added(terms: list[Expression]) -> Expression:
    return terms[0] if len(terms) == 1 else Expression("add", tuple(terms))
