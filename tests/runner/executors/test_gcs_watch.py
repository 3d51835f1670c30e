"""The end of a server is noticed at once; a server that only closes connections is alive."""

import socket
import threading
from collections.abc import Iterator

import pytest

from rollart_flow.runner.executors.gcs_watch import GcsWatch

LONG_S = 60.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def end(server: socket.socket, *connections: socket.socket) -> None:
    """End a server as its death does."""
    server.close()
    for connection in connections:
        connection.close()


def test_the_end_of_the_server_is_told_once(server: socket.socket) -> None:
    told, lost = list[int](), threading.Event()

    def tell() -> None:
        told.append(1)
        lost.set()

    watch = GcsWatch(address_of(server), tell, 0.0)
    connection, _ = server.accept()
    connection.send(b"anything that a server says")
    assert not lost.is_set()
    end(server, connection)
    assert lost.wait(LONG_S)
    watch.close()
    assert told == [1]


def test_a_server_that_closes_an_idle_connection_is_alive(server: socket.socket) -> None:
    lost = threading.Event()
    watch = GcsWatch(address_of(server), lost.set, 0.0)
    for _ in range(2):
        connection, _ = server.accept()
        connection.close()
    connection, _ = server.accept()
    with connection:
        assert not lost.is_set()
        watch.close()
    assert not lost.is_set()


def test_a_server_may_be_away_while_it_is_restarted(server: socket.socket) -> None:
    address, lost = server.getsockname(), threading.Event()
    watch = GcsWatch(address_of(server), lost.set, LONG_S)
    connection, _ = server.accept()
    end(server, connection)
    with socket.create_server(address) as again:
        connection, _ = again.accept()
        with connection:
            watch.close()
    assert not lost.is_set()


def test_a_watch_ends_while_its_server_is_away(server: socket.socket) -> None:
    lost = threading.Event()
    watch = GcsWatch(address_of(server), lost.set, LONG_S)
    connection, _ = server.accept()
    end(server, connection)
    watch.close()
    assert not watch._thread.is_alive()
    assert not lost.is_set()
