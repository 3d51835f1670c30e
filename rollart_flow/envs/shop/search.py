"""A search by words, ranked by BM25 (Robertson and Zaragoza, 2009)."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nsmallest

_WORD = re.compile(r"[a-z0-9][a-z0-9.]*")
_K1, _B = 1.2, 0.75
_MOST_WORDS = 32
"""Words of a query that are looked up."""
_MOST_RESULTS = 100
_COMMON = frozenset(
    [
        "a",
        "an",
        "and",
        "at",
        "comes",
        "for",
        "in",
        "is",
        "it",
        "made",
        "of",
        "the",
        "to",
        "versions",
        "with",
    ]
)
"""Words that are not looked up, since nearly every text has them."""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without the ending of a plural."""
    found = [word.rstrip(".") for word in _WORD.findall(text.lower())]
    return [word.removesuffix("s") for word in found if word not in _COMMON]


class SearchIndex:
    """An inverted index of texts, whose weights are computed once."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / max(1, len(lengths))
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, count in enumerate(counts):
            for word, times in count.items():
                found[word].append((place, times))
        self._weights: dict[str, list[tuple[int, float]]] = {}
        for word, places in found.items():
            rarity = math.log(1 + (len(texts) - len(places) + 0.5) / (len(places) + 0.5))
            self._weights[word] = [
                (place, rarity * _saturated(times, lengths[place] / mean))
                for place, times in places
            ]

    def search(self, query: str) -> list[int]:
        """Return the places of texts that have a word of a query, the best 100, in order."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)[:_MOST_WORDS]):
            for place, weight in self._weights.get(word, ()):
                scores[place] += weight
        return nsmallest(_MOST_RESULTS, scores, key=lambda place: (-scores[place], place))


def _saturated(times: int, length: float) -> float:
    """Return the weight of a word that a text has several times; its length is relative."""
    return times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * length))
