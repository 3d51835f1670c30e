"""A server of our own that speaks HTTP like a resources server of NeMo Gym, and every wrong answer.

It stands for the real one, which needs Python 3.12 or newer; `test_real_venvs.py` runs that one
where such an interpreter is found.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Wrong = Callable[["CounterRoutes"], None]


class CounterFront(ThreadingHTTPServer):
    """Counts from the row's number: /add adds, and /verify compares with the row's goal."""

    daemon_threads = True

    def __init__(self, wrong: dict[str, Wrong]) -> None:
        super().__init__(("127.0.0.1", 0), CounterRoutes)
        self.wrong = wrong
        self.sessions: dict[str, int] = {}
        self.ids = count()
        self.seen: list[tuple[str, Any, str | None]] = []
        self.release = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class CounterRoutes(BaseHTTPRequestHandler):
    """Its routes."""

    protocol_version = "HTTP/1.1"
    server: CounterFront

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body, self.headers.get("Authorization")))
        if self.path in self.server.wrong:
            self.server.wrong[self.path](self)
            return
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get("session")
        session = cookie.value if cookie else f"s{next(self.server.ids)}"
        sessions = self.server.sessions
        if self.path == "/seed_session":
            sessions[session] = body["number"]
            self.reply(200, {}, session)
        elif self.path == "/add" and not isinstance(body.get("n"), int):
            self.reply(422, {"detail": "n is no integer"}, session)
        elif self.path == "/add":
            sessions[session] += body["n"]
            self.reply(200, {"number": sessions[session]}, session)
        elif self.path == "/verify":
            right = sessions[session] == body["goal"]
            self.reply(200, {**body, "reward": float(right), "right": right}, session)
        else:
            self.reply(404, {"detail": "Not Found"}, session)

    def reply(self, status: int, answer: Any, session: str = "", **headers: str) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if session:
            self.send_header("Set-Cookie", f"session={session}; path=/; httponly")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def counting(wrong: dict[str, Wrong] | None = None) -> Iterator[CounterFront]:
    """A server in a thread."""
    with CounterFront(wrong or {}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            server.shutdown()
            thread.join()
