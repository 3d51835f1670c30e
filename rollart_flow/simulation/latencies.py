"""Distributions of latencies and lengths.

Each is a frozen description. `draw` takes all randomness from the generator that it is given, so
that a value is a function of a seed.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Distribution(Protocol):
    """A distribution of values of 0 or more."""

    def draw(self, chance: Random) -> float:
        """One random value, 0 or more."""


@dataclass(frozen=True, slots=True)
class FixedLatency:
    """A latency that always has the same value."""

    value: float

    def draw(self, chance: Random) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between two values, as the ranges of ROLLART Table 1."""

    low: float
    high: float

    def draw(self, chance: Random) -> float:
        return chance.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Normal distribution, cut at zero (ROLLART section 7.3: mu = 10 s, sigma from 1 to 10 s)."""

    mu: float
    sigma: float

    def draw(self, chance: Random) -> float:
        return max(0.0, chance.gauss(self.mu, self.sigma))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Heavy-tailed: a median, and the sigma of the logarithm (ROLLART section 3.1, Figure 5a)."""

    median: float
    sigma: float
    most: float = math.inf
    """Larger values are cut to this one."""

    def draw(self, chance: Random) -> float:
        return min(self.most, self.median * math.exp(chance.gauss(0.0, self.sigma)))


@dataclass(frozen=True, slots=True)
class LatencyMixture:
    """One of several distributions, by weight: for instance a body and a tail."""

    parts: tuple[tuple[float, Distribution], ...]

    def draw(self, chance: Random) -> float:
        weights, parts = zip(*self.parts, strict=True)
        part: Distribution = chance.choices(parts, weights)[0]
        return part.draw(chance)


Constant = FixedLatency
Mixture = LatencyMixture
"""Names of earlier versions, which scenario files use."""
