"""What the requests of a domain take on a hardware class, from what a client sees of them.

The invariant: an estimate is a function of the generations that were added, the recent ones first,
and takes the same memory however many they are.
"""

from dataclasses import dataclass

_RECENT = 1024
"""Generations that averages reach back, exponentially weighted."""
Rates = tuple[float, float]
"""(prefill seconds per new token, decode seconds per generated token)."""


@dataclass(frozen=True, slots=True)
class GenerationSpan:
    """A stretch of a generation: what its worker did meanwhile, as far as the client knows."""

    passes: int
    """Tokens that the generation drew, one for each pass over the model."""
    prefilled: int
    """New tokens of prompts, its own and those of other requests."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One finished generation that nothing interrupted."""

    domain: str
    hardware: str
    new_tokens: int
    """Of the prompt, less what its worker had cached of the trajectory."""
    tokens: int
    """Generated."""
    spans: tuple[GenerationSpan, ...]
    """To its first chunk, and from there to the last."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a domain's requests take on a hardware class."""

    prefill_s: float
    """Per new token of the prompt [s]."""
    decode_s: float
    """Per generated token [s]."""
    requests: int
    """Generations seen."""


class Sums:
    """Exponentially weighted sums; each generation leaves `1 - 1 / _RECENT` of those before.

    Rates are the least squares of `seconds = prefill_s * prefilled + decode_s * passes` over all
    spans, each weighted by the inverse of its seconds.
    """

    __slots__ = ("_sums", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew; what was seen has been seen."""
        self._sums = [0.0] * 8

    def add(self, seen: Seen) -> None:
        """One more generation."""
        self.seen += 1
        self.decay()
        terms = [0.0] * 5
        for span in seen.spans:
            x, y, weight = span.prefilled, span.passes, 1 / max(span.seconds, 1e-6)
            for i, term in enumerate((x * x, x * y, y * y, x * span.seconds, y * span.seconds)):
                terms[i] += weight * term
        added = (1.0, seen.new_tokens, seen.tokens, *terms)
        self._sums = [total + term for total, term in zip(self._sums, added, strict=True)]

    def decay(self) -> None:
        """A generation of somebody else."""
        keep = 1 - 1 / _RECENT
        self._sums = [keep * total for total in self._sums]

    @property
    def requests(self) -> float:
        """Generations, the recent ones first."""
        return self._sums[0]

    @property
    def work(self) -> tuple[float, float]:
        """(new tokens, generated tokens)."""
        return self._sums[1], self._sums[2]

    @property
    def rates(self) -> Rates:
        """Those that explain the seconds best; neither is negative."""
        *_, xx, xy, yy, xs, ys = self._sums
        determinant = xx * yy - xy * xy
        if determinant > 1e-9 * xx * yy:
            prefill_s = (xs * yy - ys * xy) / determinant
            decode_s = (ys * xx - xs * xy) / determinant
            if prefill_s >= 0 and decode_s >= 0:
                return prefill_s, decode_s
        if xs * xs * yy > ys * ys * xx:  # prefill alone explains more than decode alone
            return xs / xx, 0.0
        return 0.0, ys / yy if yy else 0.0

    def slower(self, rates: Rates) -> float:
        """How many times as long as at these rates the generations took; least squares again."""
        *_, xx, xy, yy, xs, ys = self._sums
        p, q = rates
        expected = p * p * xx + 2 * p * q * xy + q * q * yy
        return (p * xs + q * ys) / expected if expected else 1.0
