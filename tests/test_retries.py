"""Operations are repeated while their error may pass: timed to the second, under virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from rollart_flow.errors import WeightsError, WeightStoreAwayError
from rollart_flow.retries import RetryPolicy, retried, retried_async
from rollart_flow.simulation import run
from rollart_flow.types import Retried

POLICY = RetryPolicy(limit_s=60.0, backoff_s=1.0, backoff_cap_s=8.0)


class Store:
    """A store that is away for some calls, under a clock that only `sleep` moves."""

    def __init__(self, away: int, error: WeightsError | None = None) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.notes: list[Retried] = []
        self._away = away
        self._error = error or WeightStoreAwayError("the disk\nis full")

    def read(self) -> str:
        if len(self.pauses) < self._away:
            raise self._error
        return "read"

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def retried(self, call: Callable[[], str] | None = None) -> str:
        return retried(
            "read version 3", call or self.read, WeightStoreAwayError, self.notes.append, POLICY,
            sleep=self.sleep, now=lambda: self.now,
        )  # fmt: skip


def test_pauses_grow_up_to_the_cap() -> None:
    store = Store(away=6)
    assert store.retried() == "read"
    limits = (1, 2, 4, 8, 8, 8)
    assert all(0 <= pause <= most for pause, most in zip(store.pauses, limits, strict=True))


def test_what_was_repeated_is_reported_once_it_succeeds() -> None:
    store = Store(away=2)
    store.retried()
    (note,) = store.notes
    assert note == Retried("read version 3", 2, store.now, "the disk is full")
    event = note.event("trainer", 3)
    assert (event.kind, event.subject, event.policy_version) == ("retry", "trainer", 3)
    assert event.detail["failures"] == 2
    assert Store(away=0).retried() == "read"


def test_a_success_at_once_is_not_reported() -> None:
    store = Store(away=0)
    store.retried()
    assert store.notes == []


def test_an_error_that_does_not_pass_is_named_with_its_attempts() -> None:
    store = Store(away=10_000)
    with pytest.raises(
        WeightStoreAwayError, match=r"^the disk is full \(attempts: \d+ in \d+ s\)$"
    ):
        store.retried()
    assert 50 < store.now <= 60
    assert store.notes == []


def test_another_error_is_raised_at_once() -> None:
    store = Store(away=1, error=WeightsError("damaged"))
    with pytest.raises(WeightsError, match=r"^damaged$"):
        store.retried()
    assert store.pauses == []


def test_a_coroutine_is_repeated_in_the_time_of_its_loop() -> None:
    notes, attempts = list[Retried](), list[float]()

    async def read() -> str:
        await asyncio.sleep(1)
        attempts.append(asyncio.get_running_loop().time())
        if len(attempts) < 4:
            raise WeightStoreAwayError("away")
        return "read"

    async def main() -> str:
        return await retried_async("read", read, WeightStoreAwayError, notes.append, POLICY)

    assert run(main()) == "read"
    assert attempts[0] == 1
    (note,) = notes
    assert note.failures == 3
    assert note.seconds == attempts[3] - 1
