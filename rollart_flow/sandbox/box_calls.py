"""Calls of boxes by messages, for an environment whose boxes are in another process.

The environment's side is `CalledBoxes`, whose calls an `Ask` carries; the side of the boxes is
`box_answer`. A message is a mapping that JSON can carry, with bytes beside it:

    {"call": "open", "box": 1, "spec": {...}, "snapshot": false}     bytes: archive of the snapshot
    {"call": "exec", "box": 1, "command": ..., ...}                  bytes: standard input
    {"value": ...} or {"error": [class, message]}                    bytes: a file, an archive

Files that are uploaded or downloaded are those of the environment's process: they cross as tar
archives.

Invariant: an error has the class and the message that the box raised, so that an environment sees
no difference to boxes of its own process.
"""

import io
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rollart_flow import errors
from rollart_flow.errors import RollartError, SandboxError, SandboxFileError
from rollart_flow.sandbox.archives import packed_file, unpack_entry
from rollart_flow.sandbox.base import (
    MAX_READ_BYTES,
    CommandResult,
    KilledBy,
    Sandbox,
    SandboxLimits,
    SandboxSnapshot,
    SandboxSpec,
)
from rollart_flow.sandbox.box import Box
from rollart_flow.sandbox.boxes import Boxes

T = TypeVar("T")
Message = Mapping[str, Any]
Ask = Callable[[Message, bytes], tuple[Any, bytes]]
"""Sends a call and its bytes, and returns the answer and its bytes."""


class BoxCalls(Protocol):
    """The boxes of one attempt, as the process of its environment calls them."""

    async def __call__(self, call: Any, data: bytes, /) -> tuple[object, bytes]:
        """Answer a call and its bytes. Raises only if it is cancelled."""

    def release(self) -> None:
        """End what the attempt holds, and refuse later calls. Does not wait."""


_BUILT_IN = {error.__name__: error for error in (ValueError, TypeError, FileNotFoundError)}


class CalledBoxes(Boxes):
    """Boxes in another process.

    Args:
        ask: carries one call at a time.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._opened = 0

    def open(
        self, spec: SandboxSpec | None = None, *, snapshot: SandboxSnapshot | None = None
    ) -> Box:
        """Take a box; see `Boxes.open`."""
        if spec is None:
            spec = snapshot.spec if snapshot is not None else SandboxSpec()
        self._opened += 1
        box = CalledBox(self._ask, self._opened, spec)
        box.call(
            "open",
            b"" if snapshot is None else snapshot.archive,
            spec=asdict(spec),
            snapshot=snapshot is not None,
        )
        return Box(box, _at_once)


class CalledBox(Sandbox):
    """A box in another process, whose coroutines end at their first step.

    Args:
        ask: carries the calls.
        number: number of the box among those of its environment.
        spec: contents and limits.
    """

    def __init__(self, ask: Ask, number: int, spec: SandboxSpec) -> None:
        self._ask = ask
        self._number = number
        self.spec = spec
        self._closed = self._ended = False

    @property
    def alive(self) -> bool:
        return not (self._closed or self._ended)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        line = command if isinstance(command, str) else list(command)
        more = None if env is None else dict(env)
        values, _ = self.call("exec", stdin, command=line, timeout_s=timeout_s, env=more, cwd=cwd)
        return CommandResult(**{**values, "killed_by": KilledBy(values["killed_by"])})

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        return self.call("read", path=path, max_bytes=max_bytes)[1]

    async def write(self, path: str, data: bytes) -> None:
        self.call("write", data, path=path)

    async def upload(self, source: Path, path: str) -> None:
        os.lstat(source)  # raises FileNotFoundError before anything is sent
        self.call("unpack", packed_file(source, Path(path).name), path=path)

    async def download(self, path: str, target: Path) -> None:
        _, archive = self.call("pack", path=path)
        limit = 2 * self.spec.limits.disk_mb << 20
        if problem := unpack_entry(io.BytesIO(archive), target, limit):
            raise SandboxFileError(f"{path}: {problem}")

    async def snapshot(self) -> SandboxSnapshot:
        return SandboxSnapshot(self.spec, self.call("snapshot")[1])

    async def processes(self) -> int:
        return int(self.call("processes")[0])

    async def kill_all(self) -> None:
        self.call("kill_all")

    async def close(self) -> None:
        if not self._closed:
            self.call("close")
            self._closed = True

    def call(self, name: str, data: bytes = b"", **arguments: object) -> tuple[Any, bytes]:
        """Send a call of this box; return its value and its bytes, or raise its error."""
        if self._closed:
            raise SandboxError("the sandbox has ended: it was closed")
        answer, found = self._ask({"call": name, "box": self._number, **arguments}, data)
        if "error" not in answer:
            return answer["value"], found
        error = _error_of(*answer["error"])
        self._ended = self._ended or isinstance(error, SandboxError)
        raise error


def _at_once(call: Coroutine[Any, Any, T], /) -> T:
    """Return the result of a coroutine that does not wait."""
    try:
        call.send(None)
    except StopIteration as returned:
        result: T = returned.value
        return result
    raise TypeError(f"{call} waits; it must return at once")


async def box_answer(box: Sandbox, call: Message, data: bytes) -> tuple[Message, bytes]:
    """Return the answer to a call of an open box, and its bytes. Does not raise."""
    try:
        value, found = await _result(box, call, data)
    except Exception as error:  # noqa: BLE001  raised again where the call was made
        return error_answer(error), b""
    return {"value": value}, found


async def _result(box: Sandbox, call: Message, data: bytes) -> tuple[object, bytes]:
    value: object = None
    found = b""
    match call["call"]:
        case "exec":
            value = asdict(
                await box.exec(
                    call["command"],
                    timeout_s=call["timeout_s"],
                    stdin=data,
                    env=call["env"],
                    cwd=call["cwd"],
                )
            )
        case "read":
            found = await box.read(call["path"], max_bytes=call["max_bytes"])
        case "write":
            await box.write(call["path"], data)
        case "pack":
            found = await box.pack(call["path"])
        case "unpack":
            await box.unpack(data, call["path"])
        case "snapshot":
            found = (await box.snapshot()).archive
        case "processes":
            value = await box.processes()
        case "kill_all":
            await box.kill_all()
        case _:
            raise ValueError(f"a box has no call {call['call']!r}")
    return value, found


def spec_of(call: Message, data: bytes) -> tuple[SandboxSpec, SandboxSnapshot | None]:
    """Return what an `open` asks for.

    Raises:
        SettingsError: a bound is not positive.
    """
    values = dict(call["spec"])
    spec = SandboxSpec(**{**values, "limits": SandboxLimits(**values["limits"])})
    return spec, SandboxSnapshot(spec, data) if call["snapshot"] else None


def framed(message: Message, data: bytes) -> bytes:
    """Return a message and its bytes as one piece, which crosses processes quicker than objects."""
    head = json.dumps(message).encode()
    return len(head).to_bytes(4, "big") + head + data


def unframed(frame: bytes) -> tuple[Message, bytes]:
    """Return the message and the bytes of one piece."""
    end = 4 + int.from_bytes(frame[:4], "big")
    message: Message = json.loads(frame[4:end])
    return message, frame[end:]


def error_answer(error: BaseException) -> Message:
    """Return the answer that raises an error where the call was made."""
    known = isinstance(error, (RollartError, *_BUILT_IN.values()))
    name = type(error).__name__ if known else SandboxError.__name__
    said = str(error) if known else f"the sandbox failed: {type(error).__name__}: {error}"
    return {"error": [name, said]}


def _error_of(name: str, message: str) -> Exception:
    kinds: dict[str, type[Exception]] = {**vars(errors), **_BUILT_IN}
    return kinds.get(name, SandboxError)(message)
