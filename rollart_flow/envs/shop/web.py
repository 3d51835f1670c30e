"""The shop as HTML for agents that use a browser or curl, on loopback or a Unix socket only.

    with ShopServer(Shop()) as server:
        address = server.open(task.payload)  # give it to the agent
        ...
        print(server.visit(address).bought)

Each agent has an address with a token of its own, and so a visit of its own. Pages need no
JavaScript and no cookies: a search is a form, and each element that can be clicked is a button.

Invariant: the server accepts connections from this machine alone, and every text of a page is
escaped.
"""

import secrets
import socket
import threading
from html import escape
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn, UnixStreamServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

from rollart_flow.envs.shop.domain import Shop
from rollart_flow.envs.shop.environment import opened
from rollart_flow.envs.shop.visit import ShopVisit
from rollart_flow.errors import SettingsError

_LONGEST_BODY = 4096
_IDLE_S = 10.0
"""Time after which a connection that sends nothing is closed [s]."""
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class _Loopback(ThreadingMixIn, TCPServer):
    allow_reuse_address = True


class _UnixSocket(ThreadingMixIn, UnixStreamServer):
    def get_request(self) -> tuple[socket.socket, str]:
        request, _ = super().get_request()
        return request, "local"


class ShopServer:
    """Serves visits of a shop; use it as a context manager.

    Args:
        shop: settings of the shop.
        port: port on 127.0.0.1; 0 takes a free one.
        path: path of a Unix socket to listen on in place of a port, such as for
            `SandboxSpec.socket`.

    Raises:
        SettingsError: the port or the path cannot be listened on.
    """

    def __init__(self, shop: Shop, *, port: int = 0, path: str | Path | None = None) -> None:
        self._shop = shop
        self._visits: dict[str, ShopVisit] = {}
        self._lock = threading.Lock()
        handler = type("BoundPageHandler", (_PageHandler,), {"shop_server": self})
        self._server: _Loopback | _UnixSocket
        try:
            if path is None:
                self._server = _Loopback(("127.0.0.1", port), handler)
                self._address = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
            else:
                self._server = _UnixSocket(str(path), handler)
                self._address = "http://shop"
        except OSError as error:
            where = f"port {port}" if path is None else str(path)
            raise SettingsError(f"shop: cannot listen on {where}: {error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def open(self, task: str) -> str:
        """Begin a visit for the payload of a task; return its address.

        Raises:
            EnvironmentFailedError: the payload is no goal of this shop.
        """
        token = secrets.token_urlsafe(16)
        with self._lock:
            self._visits[token] = opened(self._shop, task)
        return f"{self._address}/{token}/"

    def visit(self, address: str) -> ShopVisit:
        """Return the visit at an address, with `bought` once the agent has bought something.

        Raises:
            KeyError: `open` did not return the address.
        """
        return self._visits[urlsplit(address).path.strip("/")]

    def answer(self, token: str, act: str, given: dict[str, str]) -> tuple[int, str]:
        """Return the status and the page of a request; requests are answered one after another.

        The status is 400 for what cannot be done, and 404 for what there is not.
        """
        with self._lock:
            visit = self._visits.get(token)
            if visit is None:
                return 404, _html("Not found", "<p>There is no such visit.</p>")
            problem = ""
            if act == "search":
                problem = visit.search(given.get("q", ""))
            elif act == "click":
                problem = visit.click(given.get("element", ""))
            elif act:
                return 404, _html("Not found", "<p>There is no such page.</p>")
            return (400 if problem else 200), _page(visit, token, problem)

    def close(self) -> None:
        """End the server and its visits. May be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _PageHandler(BaseHTTPRequestHandler):
    shop_server: ShopServer
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Show the page of a visit, or search: `/TOKEN/` and `/TOKEN/search?q=WORDS`."""
        parts = urlsplit(self.path)
        given = parse_qs(parts.query, max_num_fields=8)
        self._answer(parts.path, {key: values[-1] for key, values in given.items()}, "search")

    def do_POST(self) -> None:
        """Click an element: `/TOKEN/click` with a form that has `element`."""
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= _LONGEST_BODY:
            return self._reply(413, _html("Too long", "<p>The request is too long.</p>"))
        body = self.rfile.read(length).decode(errors="replace")
        given = {key: values[-1] for key, values in parse_qs(body).items()}
        return self._answer(urlsplit(self.path).path, given, "click")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _answer(self, path: str, given: dict[str, str], allowed: str) -> None:
        if not self._host_is_ours():
            return self._reply(421, _html("Wrong host", "<p>Use the address of the visit.</p>"))
        token, _, act = path.lstrip("/").partition("/")
        if act and act != allowed:
            act = "unknown"
        return self._reply(*self.shop_server.answer(token, act, given))

    def _host_is_ours(self) -> bool:
        """Whether a request names this server: a page of another host cannot be made to send it."""
        host = self.headers.get("Host", "").rpartition(":")
        return (host[0] or host[2]) in ("127.0.0.1", "localhost", "shop")

    def _reply(self, status: int, page: str) -> None:
        data = page.encode(errors="replace")
        self.send_response(status)
        for name, value in (*_HEADERS.items(), ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _page(visit: ShopVisit, token: str, problem: str) -> str:
    """Return the page of a visit as HTML."""
    page, base = visit.page(), f"/{quote(token)}"
    parts = [f"<p>Customer: {escape(visit.goal.instruction)}</p>"]
    parts += [f"<p><strong>{escape(problem)}</strong></p>"] if problem else []
    parts += [f"<p>{escape(line)}</p>" for line in page.lines]
    if page.searches:
        parts.append(
            f'<form action="{base}/search" method="get"><input name="q" aria-label="search">'
            "<button>search</button></form>"
        )
    if page.clicks:
        buttons = "".join(
            f'<button name="element" value="{escape(click)}">{escape(click)}</button> '
            for click in page.clicks
        )
        parts.append(f'<form action="{base}/click" method="post">{buttons}</form>')
    return _html(page.title, "\n".join(parts))


def _html(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title></head>\n<body><h1>{escape(title)}</h1>\n{body}\n"
        "</body></html>\n"
    )
