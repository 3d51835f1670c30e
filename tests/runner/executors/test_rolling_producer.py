"""The producer's executions: the next takes over before one ends, and none is left behind."""

import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.runner.executors.rolling_producer import RollingProducer

IN_FLIGHT = 4
BLOCKS = 40
ENOUGH = BLOCKS * 3 // 4


class Admitting:
    """So many blocks, for whichever execution asks first; the first can be held before its end."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.lock = threading.Lock()
        self.started: list[int] = []
        self.running = 0
        self.most_running = 0
        self.abandoned = False
        self.next_started = threading.Event()

    def more(self) -> bool:
        return self.left > 0 and not self.abandoned

    def abandon(self) -> None:
        self.abandoned = True

    def take(self) -> bool:
        with self.lock:
            taken = self.left > 0 and not self.abandoned
            self.left -= taken
            return taken

    def execute(self, number: int, blocks: int) -> Iterator[int]:
        with self.lock:
            self.started.append(number)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if number > 0:
            self.next_started.set()
        for _ in range(blocks):
            if not self.take():
                break
            yield 1
        with self.lock:
            self.running -= 1

    def generations(self) -> RollingProducer:
        return RollingProducer(
            self.execute, self.more, self.abandon, in_flight=IN_FLIGHT, blocks=BLOCKS
        )


def test_everything_that_is_admitted_comes_out() -> None:
    admitting = Admitting(total=5 * BLOCKS + 3)
    assert sum(admitting.generations().run()) == 5 * BLOCKS + 3
    assert admitting.started == list(range(len(admitting.started)))
    assert len(admitting.started) >= 6
    assert admitting.most_running <= 2


def test_an_execution_is_large_enough_for_what_is_in_flight() -> None:
    asked: list[int] = []

    def execute(number: int, blocks: int) -> Iterator[int]:
        asked.append(blocks)
        return iter(())

    answers = iter((True, False))
    list(
        RollingProducer(
            execute, lambda: next(answers), lambda: None, in_flight=1000, blocks=BLOCKS
        ).run()
    )
    assert asked == [8000]


def test_the_next_execution_starts_while_one_still_has_blocks() -> None:
    admitting = Admitting(total=2 * BLOCKS)

    def execute(number: int, blocks: int) -> Iterator[int]:
        produced = admitting.execute(number, blocks)
        yield from islice(produced, ENOUGH)
        if number == 0:
            assert admitting.next_started.wait(60), "the next one waits for this one's end"
        yield from produced

    chain = RollingProducer(
        execute, admitting.more, admitting.abandon, in_flight=IN_FLIGHT, blocks=BLOCKS
    )
    assert sum(chain.run()) == 2 * BLOCKS


def test_the_length_of_an_execution_is_counted_in_blocks_however_many_rows_they_have() -> None:
    admitting = Admitting(total=2 * BLOCKS)

    def execute(number: int, blocks: int) -> Iterator[int]:
        return (64 * each for each in admitting.execute(number, blocks))

    chain = RollingProducer(
        execute, admitting.more, admitting.abandon, in_flight=IN_FLIGHT, blocks=BLOCKS
    )
    counts = islice(chain.run(), ENOUGH - 1)
    assert sum(counts) == 64 * (ENOUGH - 1)
    assert admitting.started == [0]


def test_nothing_is_executed_where_nothing_is_admitted() -> None:
    admitting = Admitting(total=0)
    assert list(admitting.generations().run()) == []
    assert admitting.started == []


def test_a_failure_ends_the_other_execution_too() -> None:
    admitting = Admitting(total=1_000_000_000)

    def execute(number: int, blocks: int) -> Iterator[int]:
        if number == 1:
            raise RunFailedError("the reward operator died")
        yield from admitting.execute(number, 1_000_000_000)

    chain = RollingProducer(
        execute, admitting.more, admitting.abandon, in_flight=IN_FLIGHT, blocks=BLOCKS
    )
    before = threading.active_count()
    with pytest.raises(RunFailedError, match="the reward operator died"):
        list(chain.run())
    assert admitting.abandoned
    assert admitting.running == 0
    assert threading.active_count() == before, "its thread is joined"
