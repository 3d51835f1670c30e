"""Figures: values of metrics, and the names that they have in a tracker."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollart_flow.metrics.catalog import EVALUATION, METRICS, Metric


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of a metric, with what is beside it."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """Values of the metric's labels; empty: the value over all of them."""
    beside: tuple[float, ...] = ()
    """Values of the statistics beside it, in the order of `Metric.beside`, as far as known."""

    @property
    def name(self) -> str:
        """Name of the value in a tracker, such as "rollout/reward/frozenlake"."""
        if self.metric is EVALUATION:
            return "/".join((EVALUATION.group, *self.labels))
        return "/".join((self.metric.name, *self.labels))


def figure(name: str, value: float, *labels: str, beside: tuple[float, ...] = ()) -> Figure:
    """Return a figure of the metric with a name."""
    return Figure(METRICS[name], float(value), labels, tuple(map(float, beside)))


def flat(figures: Iterable[Figure]) -> Mapping[str, float]:
    """Return every finite value by its name; statistics follow the name: `rollout/reward/max`."""
    named: dict[str, float] = {}
    for each in figures:
        named[each.name] = each.value
        for statistic, value in zip(each.metric.beside, each.beside, strict=False):
            named[f"{each.name}/{statistic}"] = value
    return {name: value for name, value in named.items() if math.isfinite(value)}
