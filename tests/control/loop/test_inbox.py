"""Inbox: every message once and in order, whether the reader waits or not."""

import asyncio

import pytest

from rollart_flow.control.loop.inbox import Inbox


async def all_of(inbox: Inbox[int], count: int) -> list[int]:
    return [await inbox.get() for _ in range(count)]


async def test_messages_come_in_order_before_and_while_the_reader_waits() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    inbox.put(2)
    reader = asyncio.ensure_future(all_of(inbox, 5))
    await asyncio.sleep(0)
    inbox.put(3)
    inbox.put(4)
    await asyncio.sleep(0)
    inbox.put(5)
    assert await reader == [1, 2, 3, 4, 5]


async def test_a_reader_that_gives_up_takes_no_message() -> None:
    inbox: Inbox[int] = Inbox()
    reader = asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    reader.cancel()
    inbox.put(1)
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await inbox.get() == 1
