"""Profiler: which hardware class suits which domain, found while a run goes on (ROLLART section 9).

The paper binds domains by hand: prefill-heavy ones such as FrozenLake to compute-optimized devices
(H800), decode-heavy ones such as math to those with bandwidth (H20; section 7.3). Here the times of
finished generations say so. The invariant: the mapping is a function of what was observed and of
the number of workers, so that processes that see the same workload choose alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from rollart_flow.control.inference.affinity_solver import choose, makespan
from rollart_flow.control.inference.affinity_stats import Profile, Rates, Seen, Sums
from rollart_flow.control.protocols import Emit
from rollart_flow.types import Event, EventKind

AUTO = "auto"
"""In place of a hardware class by domain: the profiler chooses."""
ENOUGH = 16
"""Generations of a domain on a class before its times are believed."""
EXPLORED = 16
"""One in so many new trajectories goes to a class that a bound domain was not seen enough on."""
EVERY = 64
"""Generations from one judgement to the next."""
MARGIN = 0.15
"""Share of the predicted makespan that another mapping must save to be preferred."""
PATIENCE = 3
"""Judgements in a row that must prefer the same mapping before it replaces one."""
RARE = 0.02
"""Share of the new trajectories below which a domain may go anywhere, and holds up nobody."""


class Profiler:
    """Keeps the profiles of one process and binds domains by them.

    Until every domain was seen often enough on every class, all go anywhere. A domain or a class
    that joins later is explored with a small share of the requests. A mapping is replaced only by
    one that is predicted to be clearly better, several times in a row.

    Times are those that requests meet. The prefills that a request waits for, its own and others',
    explain one part of them and its own passes the other, so that domains which share a class are
    told apart. What is left of the load of a class, the size of its batches, is in the times. So
    the rates of a domain on all classes are noted when it is bound: there, and only there, they
    were measured under alike loads. From then on its requests are followed, and by how much they
    are slower on its own class; on the others they are taken to be slower by as much.

    Args:
        emit: where changes of the mapping are reported, one event for each domain.
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
        """Hardware class by domain, of those that are bound."""
        return dict(self._mapping)

    def profile(self, domain: str, hardware: str) -> Profile | None:
        """What was seen of a domain on a class; None for nothing."""
        sums = self._on.get((domain, hardware))
        return None if sums is None else Profile(*sums.rates, sums.seen)

    def resize(self, hardware: Iterable[str]) -> None:
        """The classes of all workers that are in use, once for each worker."""
        self._workers = Counter(hardware)
        self._mapping = {d: c for d, c in self._mapping.items() if c in self._workers}

    def wanted(self, domain: str) -> str | None:
        """The class that a domain is bound to; None: any."""
        return self._mapping.get(domain)

    def place(self, domain: str) -> str | None:
        """The class for a new trajectory: now and then one that has to be explored."""
        self._placed[domain] += 1
        wanted = self._mapping.get(domain)
        unseen = self._unseen(domain)
        if wanted is None or not unseen:
            return wanted
        return wanted if self._placed[domain] % EXPLORED else unseen[0]

    def observe(self, seen: Seen) -> None:
        """Take a finished generation into account; judges the mapping now and then."""
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
        """Classes on which a domain was not seen often enough."""
        return [c for c in sorted(self._workers) if not self._known(domain, c)]

    def _known(self, domain: str, hardware: str) -> bool:
        pair = domain, hardware
        return pair in self._noted or (pair in self._on and self._on[pair].seen >= ENOUGH)

    def _judge(self) -> None:
        """Bind domains that are not bound, or replace the mapping by one that is clearly better."""
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
        """Seconds that the recent requests of a domain take on a class, or would take."""
        new_tokens, tokens = self._domains[domain].work
        prefill_s, decode_s = self._rates(domain, hardware)
        return new_tokens * prefill_s + tokens * decode_s

    def _rates(self, domain: str, hardware: str) -> Rates:
        """What a domain takes on a class, under the load that its own class has."""
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
