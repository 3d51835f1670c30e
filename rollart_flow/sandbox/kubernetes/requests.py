"""The bytes of a request to a pod, and those of its answer (`runner`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox import output
from rollart_flow.sandbox.kubernetes import filtering, runner

_START = """
import sys
source = open(0, "rb", 0, closefd=False)
def take(size):
    data = bytearray()
    while len(data) < size:
        data += source.read(size - len(data)) or sys.exit(1)
    return bytes(data)
code, request, given = map(int, source.readline().split())
code, request, given = take(code), take(request), take(given)
exec(compile(code, "runner", "exec"))
main(json.loads(request), given)
"""
COMMAND = ("python3", "-I", "-S", "-B", "-c", _START)
"""Command that an exec starts; it reads one request from its standard input."""
_PARTS = (output, filtering, runner)
"""Modules of this package that a pod runs, each after those that it imports from."""


def request_bytes(operation: str, arguments: dict[str, Any], given: bytes) -> bytes:
    """Return a request: three lengths, the code, the arguments as JSON, and the given bytes."""
    code = _code()
    request = json.dumps({"operation": operation, **arguments}).encode()
    return b"%d %d %d\n" % (len(code), len(request), len(given)) + code + request + given


def parsed_answer(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return an answer and its bytes.

    Raises:
        SandboxError: it is none.
    """
    head, found, rest = data.partition(b"\n")
    try:
        answer = json.loads(head)
    except ValueError:
        answer = None
    if not found or not isinstance(answer, dict):
        raise SandboxError("a pod gave no answer")
    return answer, rest


@cache
def _code() -> bytes:
    """Return the code that a pod runs, without imports of this package."""
    lines = "".join(Path(str(part.__file__)).read_text() for part in _PARTS).splitlines(
        keepends=True
    )
    return "".join(line for line in lines if not line.startswith("from rollart_flow")).encode()
