"""The holder's end of the connection to a box: what comes from a box is an answer, or ends it."""

import asyncio
import os
import socket
from array import array
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.agent.connection import AgentAnswer, Connection

FILE = "a-file-of-a-box"
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "run": ((), {}, ""),
    "open": ("a", 0),
    "count": (),
    "pack": ("", ""),
}
WORDS = st.sampled_from(
    ["1", "2", "-1", "ended", "refused", "opened", "counted", "ready", "0", "", "x", "9" * 4000]
)
MESSAGES = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.lists(WORDS, min_size=1, max_size=5).map(lambda words: " ".join(words).encode() or b" "),
)


async def asked(operation: str, sent: list[tuple[bytes, int]]) -> AgentAnswer | SandboxError:
    """The outcome of a request, to which a box sends messages with descriptors, and ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(ours)
    _, answer = connection.send(operation, ARGUMENTS[operation])
    file = os.memfd_create(FILE)
    with theirs:
        theirs.recv(1 << 17)
        for data, count in sent:
            descriptors = array("i", [file] * count)
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if count else []
            theirs.sendmsg([data], control)
    os.close(file)
    try:
        return await answer
    except SandboxError as error:
        return error
    finally:
        connection.close()


def received() -> int:
    """How many descriptors of the file that boxes send are open."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread may close it meanwhile
            links.append(os.readlink(link))
    return sum(FILE in link for link in links)


def closed(found: AgentAnswer | SandboxError) -> AgentAnswer | SandboxError:
    """Close the descriptor of an answer."""
    if isinstance(found, AgentAnswer) and found.descriptor is not None:
        os.close(found.descriptor)
    return found


@settings(max_examples=200, deadline=None)
@given(
    operation=st.sampled_from(sorted(ARGUMENTS)),
    sent=st.lists(st.tuples(MESSAGES, st.integers(0, 2)), max_size=3),
)
def test_no_message_of_a_box_makes_a_caller_wait_or_leaves_a_descriptor(
    operation: str, sent: list[tuple[bytes, int]]
) -> None:
    async def outcome() -> None:
        found = closed(await asked(operation, sent))
        assert received() == 0
        if isinstance(found, SandboxError):
            return
        expected = {"open": "opened", "count": "counted"}.get(operation, "ended")
        assert found.kind in (expected, "refused")
        assert (found.descriptor is not None) == (found.kind == "opened")
        assert len(found.numbers) == {"ended": 2, "opened": 0}.get(found.kind, 1)
        assert all(abs(number) < 2**31 for number in found.numbers)

    asyncio.run(outcome())


@pytest.mark.parametrize(
    ("operation", "message", "descriptors"),
    [
        ("run", b"1 ended x 0", 0),  # numbers that are none
        ("run", b"1 ended 0", 0),  # too few
        ("run", b"1 counted 3", 0),  # the answer to another request
        ("open", b"1 opened", 0),  # no descriptor
        ("count", b"1 counted 99999999999", 0),
        ("run", b"\xff", 0),
    ],
)
def test_an_answer_that_is_none_ends_the_box(
    operation: str, message: bytes, descriptors: int
) -> None:
    found = asyncio.run(asked(operation, [(message, descriptors), (b"1 ended 0 1", 0)]))
    assert isinstance(found, SandboxError)


def test_an_answer_is_given_to_its_caller() -> None:
    assert asyncio.run(asked("run", [(b"ready", 0), (b"1 ended 0 7", 0)])) == AgentAnswer(
        "ended", (0, 7), None
    )
    found = asyncio.run(asked("open", [(b"1 opened", 1)]))
    assert isinstance(found, AgentAnswer)
    assert found.descriptor is not None
    closed(found)
