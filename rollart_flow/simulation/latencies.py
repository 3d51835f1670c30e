"""Distributions of latencies and lengths.

Each is a frozen description with a mean. `draw` takes all randomness from the generator that it is
given, so that a value is a function of a seed.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Distribution(Protocol):
    """A distribution of values of 0 or more."""

    def draw(self, chance: Random) -> float:
        """One random value, 0 or more."""
        ...

    @property
    def mean(self) -> float:
        """Expected value of `draw`."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLatency:
    """The same value always."""

    value: float

    def draw(self, chance: Random) -> float:
        """The value."""
        return self.value

    @property
    def mean(self) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between two values, as the ranges of ROLLART Table 1."""

    low: float
    high: float

    def draw(self, chance: Random) -> float:
        """One value."""
        return chance.uniform(self.low, self.high)

    @property
    def mean(self) -> float:
        """Midpoint of the range."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Normal distribution, cut at zero (ROLLART section 7.3: mu = 10 s, sigma from 1 to 10 s)."""

    mu: float
    sigma: float

    def draw(self, chance: Random) -> float:
        """One value."""
        return max(0.0, chance.gauss(self.mu, self.sigma))

    @property
    def mean(self) -> float:
        """Expected value after the cut."""
        if self.sigma == 0:
            return max(0.0, self.mu)
        z = self.mu / self.sigma
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return self.mu * (1 + math.erf(z / math.sqrt(2))) / 2 + self.sigma * density


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Heavy-tailed: a median, and the sigma of the logarithm (ROLLART section 3.1, Figure 5a)."""

    median: float
    sigma: float
    most: float = math.inf
    """Larger values are cut to this one."""

    def draw(self, chance: Random) -> float:
        """One value."""
        return min(self.most, self.median * math.exp(chance.gauss(0.0, self.sigma)))

    @property
    def mean(self) -> float:
        """Expected value, the cut included."""
        s = self.sigma
        if s == 0:
            return min(self.most, self.median)
        whole = self.median * math.exp(s * s / 2)
        if math.isinf(self.most):
            return whole
        k = math.log(self.most / self.median)
        below = (1 + math.erf((k - s * s) / s / math.sqrt(2))) / 2
        above = (1 - math.erf(k / s / math.sqrt(2))) / 2
        return whole * below + self.most * above


@dataclass(frozen=True, slots=True)
class LatencyMixture:
    """One of several distributions, by weight: for instance a body and a tail."""

    parts: tuple[tuple[float, Distribution], ...]

    def draw(self, chance: Random) -> float:
        """One random value of a random part."""
        weights = [weight for weight, _ in self.parts]
        part = chance.choices([part for _, part in self.parts], weights)[0]
        return part.draw(chance)

    @property
    def mean(self) -> float:
        """Weighted mean of the parts."""
        total = sum(weight for weight, _ in self.parts)
        return sum(weight * part.mean for weight, part in self.parts) / total
