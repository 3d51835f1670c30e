"""Units at the end of an answer: which there are, and how they convert."""

import re
from dataclasses import dataclass
from fractions import Fraction

_LENGTHS = {
    "mm": "1/1000", "cm": "1/100", "dm": "1/10", "m": "1", "km": "1000", "in": "127/5000",
    "ft": "381/1250", "yd": "1143/1250", "mi": "201168/125",
}  # fmt: skip
_MASSES = {"mg": "1/1000000", "g": "1/1000", "kg": "1", "t": "1000"}
_TIMES = {
    "ms": "1/1000", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800",
}  # fmt: skip
_VOLUMES = {"ml": "1/1000000", "cl": "1/100000", "dl": "1/10000", "l": "1/1000"}
_MONEY = {"dollar": "1", "cent": "1/100"}
_NAMES = {
    "millimeter": "mm", "centimeter": "cm", "meter": "m", "kilometer": "km", "millimetre": "mm",
    "centimetre": "cm", "metre": "m", "kilometre": "km", "inch": "in", "inche": "in", "foot": "ft",
    "feet": "ft", "yard": "yd", "mile": "mi", "milligram": "mg", "gram": "g", "kilogram": "kg",
    "ton": "t", "tonne": "t", "millisecond": "ms", "second": "s", "sec": "s", "minute": "min",
    "hour": "h", "hr": "h", "milliliter": "ml", "millilitre": "ml", "liter": "l", "litre": "l",
    "degree": "degree", "usd": "dollar",
}  # fmt: skip
_TABLE: dict[str, tuple[Fraction, tuple[int, int, int, str]]] = {
    **{name: (Fraction(text), (1, 0, 0, "")) for name, text in _LENGTHS.items()},
    **{name: (Fraction(text), (0, 1, 0, "")) for name, text in _MASSES.items()},
    **{name: (Fraction(text), (0, 0, 1, "")) for name, text in _TIMES.items()},
    **{name: (Fraction(text), (3, 0, 0, "")) for name, text in _VOLUMES.items()},
    **{name: (Fraction(text), (0, 0, 0, "money")) for name, text in _MONEY.items()},
}
"""Factor to the base unit, and powers of length, mass and time, of each unit."""
_ONE = re.compile(r"(?:(square|sq|cubic|cu)\s+)?([a-z]+?)s?(?:\^([23]))?")
_WORDS = r"(?:[A-Za-z]{2,}+\.?|(?<=[\s/])[mgslht](?![A-Za-z]))(?:\s*\^\s*\{?[23]\}?)?"
_ANSWER = re.compile(
    rf"(?P<value>.*?[\d)\]}}])(?P<degree>\s*\^\\circ\s*[CF]?)?"
    rf"(?P<unit>(?:\s*(?:/|per\s)?\s*(?:{_WORDS}|\\(?:text|mathrm|mbox|textrm)\s*\{{[^{{}}]*\}}"
    r"(?:\s*\^\s*\{?[23]\}?)?))*+)",
    re.DOTALL,
)
_CONNECTORS = frozenset(("and", "or", "pi", "sin", "cos", "tan", "log", "ln"))


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of an answer."""

    name: str
    """Name in lower case and in the singular."""
    factor: Fraction
    """Factor to the base unit, 1 where the unit is unknown."""
    dimension: object = None
    """Dimension that it measures; units of the same dimension convert."""

    def fits(self, other: "Unit") -> bool:
        """Return whether values in both units can be compared."""
        return self.dimension == other.dimension


def split_unit(text: str) -> tuple[str, Unit | None]:
    """Return what stands before the unit at the end of a text, and the unit if there is one."""
    match = _ANSWER.fullmatch(text)
    if match is None:
        return text, None
    said = re.sub(r"\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\}", r" \1 ", match["unit"])
    said = re.sub(r"[{}.]", "", said).replace(" ^", "^").strip().lower()
    if match["degree"]:
        said = "degree " + said
    words = said.replace("/", " ").split()
    if not words or _CONNECTORS & set(words):
        return text, None
    return match["value"].strip(), _unit(" ".join(said.split()))


def _unit(said: str) -> Unit:
    top, *rest = re.split(r"\s*/\s*|\s+per\s+", said)
    parts = [_one(part.strip()) for part in (top, *rest)]
    if len(parts) <= 2 and all(part is not None for part in parts):
        factor, dimension = parts[0] or (Fraction(1), ())
        if len(parts) == 2 and parts[1] is not None:
            factor, dimension = factor / parts[1][0], (dimension, parts[1][1])
        return Unit(said, factor, dimension)
    plural = " ".join(word.removesuffix("s") for word in said.split())
    return Unit(plural, Fraction(1), plural)


def _one(said: str) -> tuple[Fraction, tuple[object, ...]] | None:
    match = _ONE.fullmatch(said)
    if match is None:
        return None
    name = _NAMES.get(match[2], match[2])
    if name not in _TABLE:
        return None
    factor, (length, mass, time, kind) = _TABLE[name]
    power = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(match[1] or "", 1) * int(match[3] or 1)
    return factor**power, (length * power, mass * power, time * power, kind)
