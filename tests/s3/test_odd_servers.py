"""Servers that a real one becomes on a bad day: that overwrite, throttle, or forget to answer.

SeaweedFS cannot be told to do so, so each is a small HTTP server that speaks just enough S3.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store import RunWriter
from rollart_flow.store.s3.blobs import S3Blobs
from tests.runs import info


class Overwriting(BaseHTTPRequestHandler):
    """An S3 server that knows no conditions: whatever is put is taken."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Say yes."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(204 if self.command == "DELETE" else 200)
        self.send_header("ETag", '"same"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_DELETE = answer  # noqa: N815  the names that http.server asks for

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on stderr."""


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on loopback; its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def store_of(remote: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets this process find another server, by its URL."""
    return lambda url: monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)


def test_a_server_that_lets_writers_overwrite_each_other_is_refused(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(Overwriting) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        with pytest.raises(StoreError, match=f"{url} ignores If-None-Match or If-Match, so that"):
            RunWriter.create("s3://bucket/runs/a", info())


class Busy(Overwriting):
    """Throttles the first two puts."""

    asked = 0

    def busy_or_not(self) -> None:
        """Say `SlowDown` twice, then yes."""
        type(self).asked += 1
        if self.asked > 2:
            self.answer()
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.say(503, b"<Error><Code>SlowDown</Code></Error>")

    def say(self, status: int, body: bytes) -> None:
        """Answer with a body."""
        self.send_response(status)
        self.send_header("ETag", '"kept"')
        self.send_header("Last-Modified", "Thu, 02 Jan 2025 03:04:05 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = busy_or_not  # noqa: N815  the name that http.server asks for


def test_a_server_that_throttles_is_asked_again(
    store_of: Callable[[str], None],
) -> None:
    Busy.asked = 0
    with served(Busy) as url:
        store_of(url)
        assert S3Blobs("s3://bucket/runs").write("a", b"text")
    assert Busy.asked == 3


class Forgetful(Busy):
    """Takes the first conditional put, and breaks off before it says so."""

    kept = b""

    def take_or_refuse(self) -> None:
        """Say 500 to what was taken, and that it is there to whoever asks again."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if type(self).kept:
            self.say(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        type(self).kept = body
        self.say(500, b"<Error><Code>InternalError</Code></Error>")

    def give(self) -> None:
        """What was taken."""
        self.say(200, self.kept)

    do_PUT, do_GET = take_or_refuse, give  # noqa: N815


def test_a_claim_whose_answer_was_lost_is_known_to_be_ones_own(
    store_of: Callable[[str], None],
) -> None:
    Forgetful.kept = b""
    with served(Forgetful) as url:
        store_of(url)
        blobs = S3Blobs("s3://bucket/runs")
        assert blobs.claim("lease.json", b"mine") == '"kept"'
        assert blobs.claim("lease.json", b"another's") is None
