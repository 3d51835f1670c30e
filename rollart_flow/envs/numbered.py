"""Domains whose tasks are numbered: each is made from its number.

Invariant: which numbers are held out depends on no setting and no seed, so that all runs, forks and
evaluations agree on it.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from rollart_flow.envs.base import Domain
from rollart_flow.types import Split, Task
from rollart_flow.validation import check_count

HELD_OUT_FROM = 1 << 30
"""Smallest number of a held-out task."""


@dataclass(frozen=True, kw_only=True)
class NumberedDomain(Domain):
    """Base of the domains that make a task from its number.

    Raises:
        SettingsError: a number of tasks is out of range.
    """

    train_tasks: int = 1000
    """Tasks of training, from number 0. All of them come in a new order again and again, so that a
    curriculum gets to know them."""
    evaluation_tasks: int = 64
    """Tasks of an evaluation: the first ones of training."""
    held_out_tasks: int = 64
    """Held-out tasks, from number `HELD_OUT_FROM`."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_count(f"{kind}: train_tasks", self.train_tasks, low=1)
        check_count(f"{kind}: evaluation_tasks", self.evaluation_tasks, low=1)
        check_count(f"{kind}: held_out_tasks", self.held_out_tasks, low=0)

    @abstractmethod
    def task(self, number: int) -> Task:
        """Return the task of a number; one from `HELD_OUT_FROM` is held out."""

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Return the tasks of training in random orders, or the first ones for evaluation."""
        if split is Split.TRAIN:
            return self._shuffled(seed)
        return map(self.task, range(min(self.evaluation_tasks, self.counts()[0])))

    def held_out(self, seed: int) -> Iterator[Task]:
        """Return the held-out tasks, each once."""
        return map(self.task, range(HELD_OUT_FROM, HELD_OUT_FROM + self.counts()[1]))

    def counts(self) -> tuple[int, int]:
        """Return how many tasks there are of training, and how many are held out."""
        return self.train_tasks, self.held_out_tasks

    def _shuffled(self, seed: int) -> Iterator[Task]:
        random = Random(f"{self.name}/{seed}")
        count, _ = self.counts()
        while True:
            yield from map(self.task, random.sample(range(count), count))


def held_out_by_hash(text: str, fraction: float = 0.1) -> bool:
    """Return whether a text belongs to a share of all texts, chosen by its hash.

    A domain that may make one level from several numbers keeps its held-out levels apart by this.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) < fraction * 2**64
