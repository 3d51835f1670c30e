"""A mixture of sources by share.

The invariant: every section of the mixture has the shares, as far as whole numbers can.
"""

from collections.abc import Iterator, Sequence


def by_share(shares: Sequence[float]) -> Iterator[int]:
    """Yield places in `shares` without end, each as often as its share of all says.

    Smooth weighted round-robin: with equal shares, all in turn.
    """
    due = [0.0] * len(shares)
    while True:
        due = [lag + share for lag, share in zip(due, shares, strict=True)]
        chosen = max(range(len(due)), key=due.__getitem__)
        due[chosen] -= sum(shares)
        yield chosen
