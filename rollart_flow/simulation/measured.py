"""What was measured on a run, in place of models of hardware and workload.

Latencies that depend on what else is going on come in series: they are played in the order in which
they were measured, from a place that the seed chooses, so that what was alike because it was close
in time (one commit, one busy moment) stays alike. The invariant: what is played is a function of
the seed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from rollart_flow.control.ids import group_cursor
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.workloads import Script
from rollart_flow.types import Task


@dataclass(frozen=True, slots=True)
class Series:
    """Measured values in their order.

    Raises:
        SettingsError: there is none.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingsError("a series of measured values needs at least one")

    def play(self, seed: str) -> Iterator[float]:
        """The values for ever, from a place that the seed chooses."""
        first = Random(seed).randrange(len(self.values))
        return (self.values[(first + index) % len(self.values)] for index in count())


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One inference worker, as fitted to the turns of a run. Implements `EngineModel`."""

    hardware: str
    fixed_s: float
    """Of one request, on its way and until it is let in."""
    prompt_token_s: float
    """What each new token of its prompt adds to that."""
    pass_s: float
    sequence_s: float
    """What each sequence adds to a pass."""
    devices: int = 1
    kv_tokens: int = 1 << 40
    """Not recorded: nothing is ever preempted."""

    def request_s(self, tokens: int) -> float:
        """Of one request with so many new tokens, outside of the passes [s]."""
        return self.fixed_s + tokens * self.prompt_token_s

    def prefill_s(
        self, tokens: float, context: float, decoding: int = 0, kv_tokens: float = 0.0
    ) -> float:
        """The pass that draws a first token, beside `decoding` sequences [s]."""
        return self.decode_line(decoding + 1, kv_tokens)[0]

    def decode_line(self, batch: int, kv_tokens: float) -> tuple[float, float]:
        """A pass takes the first of these whatever the caches hold [s]."""
        return self.pass_s + batch * self.sequence_s, 0.0


@dataclass(frozen=True, slots=True)
class MeasuredTraining:
    """What one step takes of its trainer, from the batch to the next request for one."""

    fixed_s: float
    token_s: float
    deviations: Series
    """Measured over fitted time, by step."""

    def work_s(self, tokens: int) -> float:
        """Seconds for a batch of so many tokens where nothing else runs."""
        return self.fixed_s + tokens * self.token_s


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The attempts at one task that were not cut off from outside."""

    domain: str
    scripts: tuple[Script, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A run as it can be played again under another schedule."""

    engines: tuple[tuple[MeasuredEngine, int], ...]
    groups: tuple[RecordedGroup, ...]
    """In the order of admission."""
    training: MeasuredTraining
    exchange_s: float
    """Suspend, update and resume together, on average."""
    launch_s: Series
    """From one attempt's start to the next one's, while there is room and credit: they are handed
    out one by one."""
    scored_s: float
    """From the end of an attempt until it may be committed."""
    commit_s: Series
    """Of one commit, which takes along all that came until its end."""
    training_stretch: float = 0.0
    """How much longer training takes while attempts run, as a share."""
    engine_stretch: float = 0.0
    """How much longer requests and passes take while a step trains, as a share."""


class RecordedWorkload:
    """The groups of a run again, in their order, from a place that the seed chooses.

    An attempt that its group has not recorded, because it is redundant or a replacement, is drawn
    from all of its domain.
    """

    def __init__(self, groups: Sequence[RecordedGroup], seed: int) -> None:
        self._groups = groups
        self._seed = seed
        self._first = Random(f"{seed}/groups").randrange(len(groups))
        self._by_domain: Mapping[str, list[Script]] = defaultdict(list)
        for group in groups:
            self._by_domain[group.domain].extend(group.scripts)

    def tasks(self) -> Iterator[tuple[Task, int]]:
        """Tasks for ever, with their cursors."""
        for cursor in count():
            domain = self._group(cursor).domain
            yield Task(f"{domain}-{cursor}", domain), cursor

    def script(self, group_id: str, domain: str, attempt: int) -> Script:
        """What an attempt does."""
        recorded = self._group(group_cursor(group_id)).scripts
        if attempt < len(recorded):
            return recorded[attempt]
        return Random(f"{self._seed}/{group_id}/{attempt}").choice(self._by_domain[domain])

    def _group(self, cursor: int) -> RecordedGroup:
        return self._groups[(self._first + cursor) % len(self._groups)]
