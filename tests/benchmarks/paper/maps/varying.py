"""Changes of one scenario along the axes of a map: lengths, their spread, and the batch.

The invariant: a factor of 1 changes nothing, so that the point of the paper is the paper's case.
"""

import math
from dataclasses import replace

from rollart_flow.simulation.latencies import (
    Distribution,
    Gaussian,
    LatencyMixture,
    LogNormal,
    Uniform,
)
from rollart_flow.simulation.report.comparison import Case
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.workloads import SimulatedDomain
from tests.benchmarks.paper.figures import Figure


def varied(figure: Figure, *, lengths: float, variance: float, batch: float) -> Figure:
    """The same comparison with longer responses, more spread and a larger batch, by factors."""
    if lengths == variance == batch == 1.0:
        return figure
    name = f"{figure.name}, lengths x{lengths:g}, variance x{variance:g}, batch x{batch:g}"

    def changed(case: Case) -> Case:
        return replace(case, scenario=_scenario(case.scenario, lengths, variance, batch))

    against = None if figure.against is None else changed(figure.against)
    return replace(figure, name=name, ours=changed(figure.ours), against=against)


def _scenario(scenario: Scenario, lengths: float, variance: float, batch: float) -> Scenario:
    groups = max(1, round(scenario.batch_size * batch / scenario.group_size))
    extra = round(scenario.extra_groups * batch) if scenario.extra_groups else 0
    environments = scenario.environments
    return replace(
        scenario,
        name=f"{scenario.name}, lengths x{lengths:g}, variance x{variance:g}, batch x{batch:g}",
        domains=tuple(_domain(domain, lengths, variance) for domain in scenario.domains),
        batch_size=groups * scenario.group_size,
        environments=environments and round(environments * batch),
        extra_groups=extra,
    )


def _domain(domain: SimulatedDomain, lengths: float, variance: float) -> SimulatedDomain:
    return replace(
        domain,
        response=spread(longer(domain.response, lengths), variance),
        task_spread=domain.task_spread * variance,
        reset_s=spread(domain.reset_s, variance),
        step_s=spread(domain.step_s, variance),
    )


def longer(distribution: Distribution, factor: float) -> Distribution:
    """A distribution of lengths whose values are larger by a factor.

    Raises:
        TypeError: nothing says how a distribution of this type gets longer.
    """
    if not isinstance(distribution, LogNormal):
        raise TypeError(f"no longer {type(distribution).__name__}")
    return replace(
        distribution, median=distribution.median * factor, most=distribution.most * factor
    )


def spread(distribution: Distribution, factor: float) -> Distribution:
    """A distribution of about the same mean whose standard deviation, or the sigma of whose
    logarithm, is larger by a factor; a fixed value stays."""
    match distribution:
        case LogNormal(median, sigma):
            mean = median * math.exp(sigma * sigma / 2)
            wide = sigma * factor
            return replace(distribution, median=mean * math.exp(-wide * wide / 2), sigma=wide)
        case Gaussian(mu, sigma):
            return Gaussian(mu, sigma * factor)
        case Uniform(low, high):
            middle, half = (low + high) / 2, (high - low) / 2 * factor
            return Uniform(max(0.0, middle - half), middle + half)
        case LatencyMixture(parts):
            return LatencyMixture(tuple((weight, spread(part, factor)) for weight, part in parts))
        case _:
            return distribution
