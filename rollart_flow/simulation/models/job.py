"""A generation on a simulated inference worker, and the prefixes that the worker keeps cached."""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Job:
    """One generation on one worker."""

    key: str
    """Name of its prefix in the cache."""
    context: int
    """Tokens whose KV it needs before it samples: the prompt, and what it sampled before."""
    left: int
    """Tokens still to sample."""
    prefilled: bool = False
    """Whether its KV cache comes from another worker, complete."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, tokens), in the order in which they were sampled."""
    joined: float = 0.0
    """Passes that the batch had made when this job joined it."""
    sequence: int = 0
    """Order of arrival."""
    running: bool = False
    done: bool = False


class PrefixCache:
    """Tokens of the cached prefixes, by key, the least recently used first.

    Args:
        stored: the prefixes lie in a store beside the devices and are never evicted.
    """

    def __init__(self, *, stored: bool) -> None:
        self._stored = stored
        self._tokens: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def get(self, key: str) -> int:
        """Cached tokens of a prefix, 0 if there are none."""
        return self._tokens.get(key, 0)

    def add(self, key: str, tokens: int) -> None:
        """Cache a prefix in place of an older one with this key."""
        self.drop(key)
        self._tokens[key] = tokens
        self._total += tokens

    def drop(self, key: str) -> None:
        """Forget a prefix, if it is cached."""
        self._total -= self._tokens.pop(key, 0)

    def evict(self, used: float, capacity: int) -> None:
        """Drop prefixes until the rest fits beside `used` tokens into `capacity` tokens."""
        while not self._stored and self._tokens and used + self._total > capacity:
            _, freed = self._tokens.popitem(last=False)
            self._total -= freed

    def clear(self) -> None:
        """Drop all prefixes."""
        self._tokens.clear()
        self._total = 0
