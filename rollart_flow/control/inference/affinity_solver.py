"""Solver for the mapping of domains to hardware classes with the least predicted makespan.

The functions are pure. The invariant: no mapping has a smaller predicted makespan.
"""

from collections.abc import Mapping

Load = Mapping[tuple[str, str], float]
"""Worker seconds that a domain's recent requests take, by (domain, hardware class)."""


def choose(
    load: Load, workers: Mapping[str, int], fixed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the mapping of domains to hardware classes with the least predicted makespan.

    The time of a class is the sum of the loads of its domains, divided by its workers; the
    makespan is the time of the slowest class. Among mappings with equal makespan, the one with the
    least total work wins. The search is an exact branch and bound: domains are bound one after the
    other, the heaviest first, and a branch is pruned as soon as it is no better than the best
    mapping so far. The search is cheap for the few domains and classes of a run.

    Args:
        load: load of every domain on every class.
        workers: number of workers by class, at least one each.
        fixed: classes of domains that are already bound, which are kept.
    """
    fixed = fixed or {}
    classes = sorted(workers)
    domains = sorted({d for d, _ in load}, key=lambda d: (-min(load[d, c] for c in classes), d))
    best: tuple[float, float, dict[str, str]] | None = None

    def bind(index: int, taken: dict[str, float], mapping: dict[str, str]) -> None:
        nonlocal best
        bound = (max(taken[c] / workers[c] for c in classes), sum(taken.values()))
        if best is not None and bound >= best[:2]:
            return
        if index == len(domains):
            best = (*bound, mapping)
            return
        domain = domains[index]
        free = sorted(classes, key=lambda c: (load[domain, c] / workers[c], c))
        for hardware in (fixed[domain],) if domain in fixed else free:
            more = taken | {hardware: taken[hardware] + load[domain, hardware]}
            bind(index + 1, more, mapping | {domain: hardware})

    bind(0, dict.fromkeys(classes, 0.0), {})
    return {} if best is None else best[2]


def makespan(load: Load, workers: Mapping[str, int], mapping: Mapping[str, str]) -> float:
    """Return the seconds that the slowest class needs under a mapping."""
    taken = dict.fromkeys(workers, 0.0)
    for domain, hardware in mapping.items():
        taken[hardware] += load[domain, hardware]
    return max(taken[hardware] / count for hardware, count in workers.items())
