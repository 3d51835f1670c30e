"""A small AWS Lambda on this machine: the Invoke API in front, the Runtime API behind.

boto3 speaks to the first. AWS's own runtime client, awslambdaric, polls the second from a process
of its own, as in a container of Lambda, so that both ends are the real ones.
"""

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[2]
_JSON = {"Content-Type": "application/json"}
_RUNTIME = "/2018-06-01/runtime/invocation/"
_ARN = "arn:aws:lambda:eu-central-1:000000000000:function:score"


@dataclass
class _Invocation:
    body: bytes
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    result: SimpleQueue[tuple[bytes, bool]] = field(default_factory=SimpleQueue)
    """(payload, whether the function broke off)."""


class LambdaFront(ThreadingHTTPServer):
    """One function, `score`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.waiting: SimpleQueue[_Invocation | None] = SimpleQueue()
        self.running: dict[str, _Invocation] = {}
        self.throttled = 0
        """Requests that are still to be refused with 429."""
        self.requests = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A runtime that was killed resets its connection; anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LambdaFront
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The runtime asks for the next invocation."""
        invocation = self.server.waiting.get()
        if invocation is None:  # the front closes
            self.close_connection = True
            return
        self.server.running[invocation.id] = invocation
        self._answer(
            200, invocation.body,
            {
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": "4102444800000",
                "Lambda-Runtime-Invoked-Function-Arn": _ARN,
            },
        )  # fmt: skip

    def do_POST(self) -> None:
        """A user invokes the function, or the runtime says what came of it."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith(_RUNTIME):
            name, _, kind = self.path.removeprefix(_RUNTIME).partition("/")
            self.server.running.pop(name).result.put((body, kind == "error"))
            self._answer(202, b"{}", {})
        else:
            self._invoke(body)

    def _invoke(self, body: bytes) -> None:
        self.server.requests += 1
        if "/functions/score/" not in self.path:
            self._answer(404, b'{"Message": "no such function"}', _type("ResourceNotFound"))
        elif self.server.throttled:
            self.server.throttled -= 1
            self._answer(429, b'{"Message": "Rate exceeded"}', _type("TooManyRequests"))
        else:
            invocation = _Invocation(body)
            self.server.waiting.put(invocation)
            payload, broke_off = invocation.result.get()
            self._answer(200, payload, {"X-Amz-Function-Error": "Unhandled"} if broke_off else {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_JSON, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _type(name: str) -> dict[str, str]:
    return {"x-amzn-ErrorType": f"{name}Exception"}


@contextmanager
def lambda_front(handler: str) -> Iterator[LambdaFront]:
    """A front whose function is the handler `module.attribute`, in awslambdaric."""
    with LambdaFront() as front:
        thread = threading.Thread(target=front.serve_forever)
        thread.start()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AWS_LAMBDA_RUNTIME_API": front.address,
            "AWS_LAMBDA_FUNCTION_NAME": "score",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_LOG_GROUP_NAME": "none",
            "AWS_LAMBDA_LOG_STREAM_NAME": "none",
        }
        command = [sys.executable, "-W", "ignore", "-m", "awslambdaric", handler]
        runtime = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            yield front
        finally:
            runtime.kill()
            runtime.wait()
            front.waiting.put(None)
            front.shutdown()
            thread.join()
