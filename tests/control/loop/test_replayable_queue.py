"""Feed: each item reaches its reader, whatever happens to requests and replies."""

import asyncio
from random import Random

import pytest

from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.errors import RunFailedError


async def test_a_read_waits_for_the_first_item() -> None:
    feed: ReplayableQueue[str] = ReplayableQueue("feed")
    read = asyncio.create_task(feed.read(0))
    await asyncio.sleep(1)
    assert not read.done()
    feed.publish("a")
    assert await read == (1, ("a",))


async def test_a_read_that_is_repeated_gets_the_same_items() -> None:
    feed: ReplayableQueue[str] = ReplayableQueue("feed")
    feed.publish("a")
    feed.publish("b")
    assert await feed.read(0) == (2, ("a", "b"))
    assert await feed.read(0) == (2, ("a", "b"))


async def test_reading_after_a_cursor_acknowledges_all_up_to_it() -> None:
    feed: ReplayableQueue[int] = ReplayableQueue("feed")
    for i in range(5):
        feed.publish(i)
    assert await feed.read(3) == (5, (3, 4))
    assert len(feed) == 2


async def test_an_older_read_that_arrives_late_gets_what_is_left_and_breaks_nothing() -> None:
    feed: ReplayableQueue[int] = ReplayableQueue("feed")
    for i in range(5):
        feed.publish(i)
    await feed.read(4)
    assert await feed.read(1) == (5, (4,))
    assert await feed.read(4) == (5, (4,))


async def test_all_readers_that_wait_are_woken() -> None:
    feed: ReplayableQueue[str] = ReplayableQueue("feed")
    reads = [asyncio.create_task(feed.read(0)) for _ in range(3)]
    await asyncio.sleep(0)
    feed.publish("a")
    assert await asyncio.gather(*reads) == [(1, ("a",))] * 3


async def test_a_cursor_of_an_earlier_feed_reads_everything() -> None:
    restarted: ReplayableQueue[str] = ReplayableQueue("feed", start=1 << 32)
    restarted.publish("a")
    assert await restarted.read(57) == ((1 << 32) + 1, ("a",))


async def test_a_cursor_that_was_never_given_reads_everything() -> None:
    feed: ReplayableQueue[str] = ReplayableQueue("feed")
    feed.publish("a")
    assert await feed.read(1_000) == (1, ("a",))


async def test_a_closed_feed_answers_with_what_there_is() -> None:
    feed: ReplayableQueue[str] = ReplayableQueue("feed")
    read = asyncio.create_task(feed.read(0))
    await asyncio.sleep(0)
    feed.close()
    assert await read == (0, ())


def test_a_reader_that_is_gone_is_an_error_and_not_a_leak() -> None:
    feed: ReplayableQueue[int] = ReplayableQueue("changes", limit=3)
    for i in range(3):
        feed.publish(i)
    with pytest.raises(RunFailedError, match="changes: 3 messages are unacknowledged"):
        feed.publish(3)


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_over_a_network_that_loses_repeats_and_reorders(seed: int) -> None:
    chance = Random(seed)
    feed: ReplayableQueue[int] = ReplayableQueue("feed")
    received: list[int] = []

    async def write() -> None:
        for i in range(200):
            feed.publish(i)
            await asyncio.sleep(chance.random())

    async def late(cursor: int) -> None:
        await asyncio.sleep(chance.random() * 10)
        await feed.read(cursor)

    async def read() -> None:
        cursor = 0
        while len(received) < 200:
            if chance.random() < 0.3:
                echoes.append(asyncio.create_task(late(cursor)))
            if chance.random() < 0.3:
                await feed.read(cursor)  # the reply is lost
            new_cursor, items = await feed.read(cursor)
            received.extend(items)
            cursor = new_cursor

    echoes: list[asyncio.Task[None]] = []
    await asyncio.gather(write(), read())
    for echo in echoes:
        echo.cancel()
    assert received == list(range(200))
    await feed.read(feed.cursor - 1)
    assert len(feed) == 1
