"""Request cost of a domain on a hardware class, estimated from a client's observations.

The invariant: an estimate is a function of the added generations, weights recent ones more, and
takes constant memory.
"""

from dataclasses import dataclass

_RECENT = 1024
"""Time constant of the exponentially weighted averages [generations]."""
Rates = tuple[float, float]
"""(prefill seconds per new token, decode seconds per generated token)."""


@dataclass(frozen=True, slots=True)
class GenerationSpan:
    """A time span of a generation, with the work of its worker as far as the client knows."""

    passes: int
    """Tokens that the generation sampled, one for each pass over the model."""
    prefilled: int
    """New prompt tokens, of this and of other requests."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A finished generation without interruption."""

    domain: str
    hardware: str
    new_tokens: int
    """Prompt tokens, less the tokens of the trajectory that the worker had cached."""
    tokens: int
    """Generated tokens."""
    spans: tuple[GenerationSpan, ...]
    """Span up to the first chunk, and span from the first chunk to the last."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Cost of a domain's requests on a hardware class."""

    prefill_s: float
    """Prefill time per new prompt token [s]."""
    decode_s: float
    """Decode time per generated token [s]."""
    requests: int
    """Number of observed generations."""


class Sums:
    """Exponentially weighted sums; each generation scales earlier sums by `1 - 1 / _RECENT`.

    Rates are the least-squares solution of `seconds = prefill_s * prefilled + decode_s * passes`
    over all spans, each weighted by the inverse of its seconds.
    """

    __slots__ = ("_sums", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.forget()

    def forget(self) -> None:
        """Reset the sums; the count `seen` is kept."""
        self._sums = [0.0] * 8

    def add(self, seen: Seen) -> None:
        """Add a generation."""
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
        """Scale the sums down for a generation of another domain."""
        keep = 1 - 1 / _RECENT
        self._sums = [keep * total for total in self._sums]

    @property
    def requests(self) -> float:
        """Exponentially weighted number of generations."""
        return self._sums[0]

    @property
    def work(self) -> tuple[float, float]:
        """Exponentially weighted sums (new prompt tokens, generated tokens)."""
        return self._sums[1], self._sums[2]

    @property
    def rates(self) -> Rates:
        """Least-squares rates, both non-negative."""
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
        """Return the least-squares ratio of the measured times to the times at these rates."""
        *_, xx, xy, yy, xs, ys = self._sums
        p, q = rates
        expected = p * p * xx + 2 * p * q * xy + q * q * yy
        return (p * xs + q * ys) / expected if expected else 1.0
