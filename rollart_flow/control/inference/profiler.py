"""Profiler: finds the best hardware class for each domain during a run (ROLLART section 9).

The paper binds domains by hand: prefill-heavy ones such as FrozenLake to compute-optimized devices
(H800), decode-heavy ones such as math to bandwidth-optimized ones (H20; section 7.3). The profiler
derives the mapping from the times of finished generations. The invariant: the mapping is a function
of the observations and of the number of workers, so that processes with the same workload choose
the same mapping.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from rollart_flow.control.inference.affinity_stats import Profile, Rates, Seen, Sums
from rollart_flow.control.protocols import Emit
from rollart_flow.types import Event, EventKind

AUTO = "auto"
"""Setting in place of hardware classes by domain that lets the profiler choose."""
ENOUGH = 16
"""Generations of a domain on a class that are needed before its times are used."""
EXPLORED = 16
"""One in this many new trajectories of a bound domain explores a class with few observations."""
EVERY = 64
"""Generations between two evaluations of the mapping."""
MARGIN = 0.15
"""Share of the predicted makespan that another mapping must save to be preferred."""
PATIENCE = 3
"""Consecutive evaluations that must prefer the same mapping before the mapping is replaced."""
RARE = 0.02
"""Share of new trajectories below which a domain is left out of an evaluation."""


class Profiler:
    """Keeps the profiles of one process and binds domains to hardware classes.

    Until every frequent domain has enough observations on every class, requests go to any class. A
    domain or a class that joins later is explored with a small share of the requests. A mapping is
    replaced only if another one is predicted to be clearly better several times in a row.

    The profiler uses the times that requests experience. The prefills that a request waits for, its
    own and others', explain one part of its time and its own passes the other part, so that
    domains on the same class are distinguished. The remaining effect of the load on a class, its
    batch size, is part of the times. The rates of a domain on all classes are therefore recorded
    when the domain is bound, since only then they were measured under similar loads. Afterwards
    the slowdown of its requests on its own class is measured, and the same slowdown is assumed for
    the other classes.

    Args:
        emit: receives one event for each domain whose class changes.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._workers: Counter[str] = Counter()
        self._on: dict[tuple[str, str], Sums] = {}
        self._domains: dict[str, Sums] = {}
        self._noted: dict[tuple[str, str], Rates] = {}
        self._mapping: dict[str, str] = {}
        self._preferred: dict[str, str] = {}
        self._times_preferred = 0
        self._until_judged = EVERY
        self._placed: Counter[str] = Counter()

    @property
    def mapping(self) -> dict[str, str]:
        """Hardware class by domain, for the bound domains."""
        return dict(self._mapping)

    def profile(self, domain: str, hardware: str) -> Profile | None:
        """Return the profile of a domain on a class, or None without observations."""
        sums = self._on.get((domain, hardware))
        return None if sums is None else Profile(*sums.rates, sums.seen)

    def resize(self, hardware: Iterable[str]) -> None:
        """Set the classes of all workers in use, one entry for each worker."""
        self._workers = Counter(hardware)
        self._mapping = {d: c for d, c in self._mapping.items() if c in self._workers}

    def wanted(self, domain: str) -> str | None:
        """Return the class that a domain is bound to; None means any class."""
        return self._mapping.get(domain)

    def place(self, domain: str) -> str | None:
        """Return the class for a new trajectory, at times a class that has to be explored."""
        self._placed[domain] += 1
        wanted = self._mapping.get(domain)
        unseen = self._unseen(domain)
        if wanted is None or not unseen:
            return wanted
        return wanted if self._placed[domain] % EXPLORED else unseen[0]

    def observe(self, seen: Seen) -> None:
        """Record a finished generation; evaluate the mapping every `EVERY` generations."""
        self._on.setdefault((seen.domain, seen.hardware), Sums()).add(seen)
        for domain, sums in self._domains.items():
            if domain != seen.domain:
                sums.decay()
        self._domains.setdefault(seen.domain, Sums()).add(seen)
        self._until_judged -= 1
        if not self._until_judged:
            self._until_judged = EVERY
            self._judge()

    def _unseen(self, domain: str) -> list[str]:
        """Return the classes on which a domain has too few observations."""
        return [c for c in sorted(self._workers) if not self._known(domain, c)]

    def _known(self, domain: str, hardware: str) -> bool:
        pair = domain, hardware
        return pair in self._noted or (pair in self._on and self._on[pair].seen >= ENOUGH)

    def _judge(self) -> None:
        """Bind unbound domains, or replace the mapping by a clearly better one."""
        rare = RARE * self._placed.total()
        frequent = [d for d, count in self._placed.items() if count >= rare]
        known = [d for d in frequent if not self._unseen(d)]
        if len(self._workers) < 2 or not (self._mapping or len(known) == len(frequent)):
            return
        load = {(d, c): self._load(d, c) for d in known for c in self._workers}
        now = choose(load, self._workers, self._mapping)
        best = choose(load, self._workers)
        better = makespan(load, self._workers, best) * (1 + MARGIN)
        again = best == self._preferred and better < makespan(load, self._workers, now)
        self._times_preferred = self._times_preferred + 1 if again else 0
        self._preferred = best
        self._bind(best if self._times_preferred >= PATIENCE else now)

    def _load(self, domain: str, hardware: str) -> float:
        """Return the seconds that a domain's recent requests take, or would take, on a class."""
        new_tokens, tokens = self._domains[domain].work
        prefill_s, decode_s = self._rates(domain, hardware)
        return new_tokens * prefill_s + tokens * decode_s

    def _rates(self, domain: str, hardware: str) -> Rates:
        """Return the rates of a domain on a class, under the load of its own class."""
        if (domain, hardware) not in self._noted:
            return self._on[domain, hardware].rates
        prefill_s, decode_s = self._noted[domain, hardware]
        own = domain, self._mapping.get(domain, hardware)
        if own not in self._noted or self._on[own].requests < ENOUGH:
            return prefill_s, decode_s
        slower = self._on[own].slower(self._noted[own])
        return prefill_s * slower, decode_s * slower

    def _bind(self, mapping: Mapping[str, str]) -> None:
        for domain, hardware in mapping.items():
            before = self._mapping.get(domain)
            if hardware == before:
                continue
            rates = {c: self._rates(domain, c) for c in self._workers}
            self._noted |= {(domain, c): rate for c, rate in rates.items()}
            self._on[domain, hardware].forget()
            self._mapping[domain] = hardware
            detail = {
                "hardware": hardware,
                "before": before,
                "prefill_s": {c: rate[0] for c, rate in rates.items()},
                "decode_s": {c: rate[1] for c, rate in rates.items()},
            }
            self._emit(Event(EventKind.AFFINITY, domain, domain=domain, detail=detail))
            self._times_preferred = 0


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
