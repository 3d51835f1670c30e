"""The measurements of a stored run, in place of models of hardware and workload.

Latencies that depend on the load come in series: a simulation repeats them in the order in which
they were measured, from an offset that the seed chooses, so that values stay correlated that were
close in time (one commit, one busy moment). The invariant: the repeated values are a function of
the seed.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from random import Random

from rollart_flow.control.ids import group_cursor
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import EngineCosts
from rollart_flow.simulation.workloads import Script
from rollart_flow.types import Task


@dataclass(frozen=True, slots=True)
class Series:
    """One or more measured values in their order; SettingsError if there are none."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingsError("a series of measured values needs at least one")

    def play(self, seed: str) -> Iterator[float]:
        first = Random(seed).randrange(len(self.values))
        return cycle(self.values[first:] + self.values[:first])


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """An `EngineModel` of one inference worker, fitted to the turns of a run."""

    hardware: str
    fixed_s: float
    """Time of one request outside of the passes: on its way, and until it is admitted [s]."""
    prompt_token_s: float
    """Time that each new token of the prompt adds to `fixed_s` [s]."""
    pass_s: float
    sequence_s: float
    """Time that each sequence adds to a pass [s]."""
    devices: int = 1
    kv_tokens: int = 1 << 40
    """Practically unlimited: runs do not record it, so that nothing is ever preempted."""
    sequences: int = EngineCosts().sequences

    def request_s(self, tokens: int) -> float:
        return self.fixed_s + tokens * self.prompt_token_s

    def prefill_s(
        self, tokens: float, context: float, decoding: int = 0, kv_tokens: float = 0.0
    ) -> float:
        """Time of the pass that samples first tokens, beside `decoding` sequences [s].

        Requests take the time of their new tokens, `request_s`, before it.
        """
        return self.decode_line(decoding, kv_tokens)[0]

    def prompts_s(self, prompts: int) -> float:
        return prompts * self.sequence_s

    def decode_line(self, batch: int, kv_tokens: float) -> tuple[float, float]:
        """(time of a pass, 0): the tokens in the KV caches have no effect [s]."""
        return self.pass_s + batch * self.sequence_s, 0.0


@dataclass(frozen=True, slots=True)
class TokenCurve:
    """A quantity of a training step by its tokens, linear between the points and beyond them."""

    points: tuple[tuple[float, float], ...]
    """(tokens, value), one or more with ascending tokens; one point stands for all tokens."""

    def of(self, tokens: float) -> float:
        """Return the value for this many tokens, 0 or more."""
        if len(self.points) == 1:
            return self.points[0][1]
        place = bisect(self.points, tokens, key=lambda point: point[0])
        first = min(max(place, 1), len(self.points) - 1)
        (left, low), (right, high) = self.points[first - 1 : first + 1]
        return max(0.0, low + (high - low) * (tokens - left) / (right - left))

    def times(self, factor: float) -> "TokenCurve":
        """Return a curve whose values are so many times as large."""
        return TokenCurve(tuple((tokens, factor * value) for tokens, value in self.points))


@dataclass(frozen=True, slots=True)
class MeasuredTraining:
    """Times of one training step, from the batch to the request for the next one."""

    computing_s: TokenCurve
    """Time of the training computation by tokens, while nothing else runs [s]."""
    deviations: Series
    """Measured time of the computation divided by fitted time, by step."""
    apart_s: float = 0.0
    """Time of a step outside of the computation, which neither tokens nor attempts change [s]."""

    def work_s(self, tokens: int) -> float:
        """Time of a step over this many tokens while nothing else runs [s]."""
        return self.apart_s + self.computing_s.of(tokens)


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The attempts at one task that ended by themselves."""

    domain: str
    scripts: tuple[Script, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a run, from which it can be simulated under another schedule."""

    engines: tuple[tuple[MeasuredEngine, int], ...]
    groups: tuple[RecordedGroup, ...]
    """Groups in the order of admission."""
    training: MeasuredTraining
    exchange_s: float
    """Suspend, update and resume together, on average."""
    launch_s: Series
    """Time between the starts of two attempts while there is room and credit: attempts are handed
    out one by one."""
    scored_s: float
    """Time from the end of an attempt until it may be committed [s]."""
    commit_s: Series
    """Time of one commit, which includes all trajectories that came before its end."""
    training_stretch: float = 0.0
    """Additional time of training while attempts run, as a share of its time."""
    engine_stretch: float = 0.0
    """Additional time of requests and passes while a step trains, as a share of their time."""
    launch_stretch: float = 0.0
    """Additional time of launches while a step trains, as a share of their time."""


class RecordedWorkload:
    """The groups of a stored run in their order, from an offset that the seed chooses.

    An attempt that its group has not recorded, because it is redundant or a replacement, is chosen
    at random among the attempts of its domain.
    """

    def __init__(self, groups: Sequence[RecordedGroup], seed: int) -> None:
        self._groups = groups
        self._seed = seed
        self._first = Random(f"{seed}/groups").randrange(len(groups))
        self._by_domain: Mapping[str, list[Script]] = defaultdict(list)
        for group in groups:
            self._by_domain[group.domain].extend(group.scripts)

    def tasks(self) -> Iterator[tuple[Task, int]]:
        for cursor in count():
            domain = self._group(cursor).domain
            yield Task(f"{domain}-{cursor}", domain), cursor

    def script(self, group_id: str, domain: str, attempt: int) -> Script:
        recorded = self._group(group_cursor(group_id)).scripts
        if attempt < len(recorded):
            return recorded[attempt]
        return Random(f"{self._seed}/{group_id}/{attempt}").choice(self._by_domain[domain])

    def _group(self, cursor: int) -> RecordedGroup:
        return self._groups[(self._first + cursor) % len(self._groups)]
