"""A task domain: the side of a coin has to be guessed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.types import Split, Task
from rollart_tiny import used


class CoinEnvironment(Environment):
    """One turn; the first character of the answer counts."""

    inline = True
    version = "tiny-coin/1"

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        return "head or tail?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        won = action[:1] in ("h", "t")
        return "", float(won), True, False, {"success": won}


@dataclass(frozen=True)
class Coin(Domain):
    """Guess the side of a coin."""

    name: ClassVar[str] = "coin"
    environment: ClassVar[type[Environment]] = CoinEnvironment

    coins: int = 2
    """Number of tasks of an evaluation."""

    def make(self) -> CoinEnvironment:
        used("environment")
        return CoinEnvironment()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        every = (Task(f"coin/{number}", self.name) for number in count())
        return every if split is Split.TRAIN else islice(every, self.coins)
