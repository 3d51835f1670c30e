"""UiGuard: what every request has to pass before the application sees it.

The invariant: no page of another site reads a run or has a query run, and what the application
sends can neither load nor run anything that is not its own.
"""

import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollart_flow.request_hosts import host_name, is_address, is_loopback
from rollart_flow.timeouts import timeout

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of every answer."""

LOGIN = "/login"
_OPEN_PATHS = ("/static/", LOGIN)
"""Paths that need no token: they hold the library's own files only."""
_LONGEST_FORM_BYTES = 4096
_FORM_S = 10.0
"""Longest time from the head of a form to its end [s]."""
_SAME_SITE = (None, "same-origin", "none")


@dataclass(frozen=True)
class Readers:
    """The readers that are admitted.

    `cookie` is derived from a random key of this process, so that the token is in no browser's
    storage.
    """

    loopback: bool
    """Whether the server listens on loopback, so that only this machine is a valid host."""
    hosts: frozenset[str] = frozenset()
    """Names, besides IP addresses, by which clients may address a server beyond loopback."""
    token: str | None = field(default=None, repr=False)
    """Token that every request must present; None admits whoever reaches the server."""
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Value of the cookie that a browser gets for the token."""

    @classmethod
    def at(cls, host: str, token: str | None, names: Collection[str] = ()) -> "Readers":
        """Return the rules of a server that listens on an address."""
        known = frozenset({"localhost", host.lower(), *(name.lower() for name in names)})
        return cls(is_loopback(host.lower()), known, token)

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        name = host_name(host)
        if is_loopback(name):
            return True
        return not self.loopback and (name in self.hosts or is_address(name))

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token."""
        return self.token is not None and _equal(given, self.token)


class UiGuard:
    """Middleware of ASGI that admits requests and adds headers to every answer."""

    def __init__(self, app: ASGIApp, readers: Readers) -> None:
        self._app, self._readers = app, readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = await self._answer(request)
        await (answer or self._app)(scope, receive, guarded)

    async def _answer(self, request: Request) -> Response | None:
        """Return an answer in place of the application's, or None for an admitted request."""
        if (refused := self._refused(request)) is not None:
            return refused
        if self._readers.token is None:
            return None
        path, given = request.url.path, request.query_params.get("token")
        if path == LOGIN and request.method == "POST":
            return await self._log_in(request)
        if given is not None and request.method == "GET":
            return self._exchange(request, given)
        if path.startswith(_OPEN_PATHS) or self._presents(request):
            return None
        if path.startswith("/api/"):
            return refusal(401, "the token is missing or wrong; open the URL that was printed")
        return RedirectResponse(LOGIN, 303)

    def _refused(self, request: Request) -> Response | None:
        headers, path = request.headers, request.url.path
        host = headers.get("host", "")
        if not self._readers.knows(host):
            return refusal(421, f"the server does not answer for host {host[:80]!r}")
        logging_in = path == LOGIN and self._readers.token is not None
        if request.method not in ("GET", "HEAD") and not (logging_in and request.method == "POST"):
            return refusal(405, "runs are read here, and nothing else")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return refusal(403, "the request comes from a page of another origin")
        opens = headers.get("sec-fetch-mode") == "navigate" and not path.startswith("/api/")
        if headers.get("sec-fetch-site") not in _SAME_SITE and not opens:
            return refusal(403, "the request comes from a page of another site")
        return None

    def _presents(self, request: Request) -> bool:
        """Return whether a request has the cookie, or the token as a bearer token."""
        headers = request.headers
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._readers.is_token(bearer.strip()):
            return True
        found = request.cookies.get(_cookie_name(headers))
        return found is not None and _equal(found, self._readers.cookie)

    def _exchange(self, request: Request, given: str) -> Response:
        """Answer an address with a token by one without it, and the cookie if it is the token."""
        left = [
            (name, text) for name, text in request.query_params.multi_items() if name != "token"
        ]
        address = request.url.path + (f"?{urlencode(left)}" if left else "")
        return self._with_cookie(RedirectResponse(_local(address), 303), request, given)

    async def _log_in(self, request: Request) -> Response:
        body = bytearray()
        try:
            async with timeout(_FORM_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > _LONGEST_FORM_BYTES:
                        return refusal(413, "the form is too long")
        except TimeoutError:
            return refusal(408, f"no whole form within {_FORM_S:g} s")
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
        if not self._readers.is_token(given):
            return RedirectResponse(f"{LOGIN}?wrong", 303)
        return self._with_cookie(RedirectResponse("/", 303), request, given)

    def _with_cookie(self, answer: Response, request: Request, given: str) -> Response:
        if self._readers.is_token(given):
            answer.set_cookie(
                _cookie_name(request.headers),
                self._readers.cookie,
                path="/",
                httponly=True,
                samesite="lax",
            )
        return answer


def refusal(status: int, message: str) -> Response:
    """Return an answer that says in one line why a request is refused."""
    return JSONResponse({"error": message}, status)


def _cookie_name(headers: Headers) -> str:
    """Return a name with the port: browsers send the cookies of one host to all its ports."""
    return "rollart-ui-" + sha256(headers.get("host", "").lower().encode()).hexdigest()[:8]


def _local(address: str) -> str:
    """Return an address that cannot be one of another host."""
    return "/" + address.lstrip("/\\")


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
