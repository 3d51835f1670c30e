"""The program that an exec runs in a pod: one operation on the box, then its answer.

The holder sends the code of this module with each request (`requests`), so that the pod needs
Python 3.9 and no file of this package. The answer is a line of JSON and its bytes. A command cannot
write to the standard output, which only this process has, nor look into this process.

Invariant: if the holder goes away, which closes the standard input, the command is killed with all
of its descendants. It is their ancestor whatever they do, as a subreaper.
"""

import ctypes
import errno
import io
import json
import os
import resource
import select
import signal
import socket
import stat
import tarfile
import time
from collections.abc import Callable
from typing import Any

from rollart_flow.sandbox.kubernetes.filtering import filter_calls
from rollart_flow.sandbox.output import KeptOutput

_CANNOT_RUN, _NOT_FOUND = 126, 127
_PIECE = 1 << 16
_LAST_BYTES = 1 << 20
Answer = tuple[dict[str, Any], bytes]  # with the bytes that belong to the answer
_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def serve(request: dict[str, Any], given: bytes) -> Answer:
    """Do what the request says; return the answer and its bytes.

    Args:
        request: `operation` and its arguments, as the functions below take them.
        given: bytes for the operation: input of a command, contents of a file, or an archive.
    """
    operation: Callable[..., Answer] = globals()[request.pop("operation")]
    try:
        return operation(given, **request)
    except OSError as error:
        return {"errno": error.errno or errno.EIO}, b""


def run(
    given: bytes,
    argv: list[Any],
    env: dict[str, Any],
    cwd: str,
    timeout_s: float,
    processes: int,
    kept: int,
    filters: dict[str, str],
) -> Answer:
    """Run a command to its end, to its time limit, or until the holder goes away."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    streams = [os.pipe(), os.pipe()]
    began, killed_before = time.monotonic(), memory_kills()
    pid = os.fork()
    if pid == 0:
        _become(given, [end for _, end in streams], filters, argv, env, cwd, processes)
    outputs: dict[int, KeptOutput] = {}
    for read_end, write_end in streams:
        os.close(write_end)
        os.set_blocking(read_end, False)
        outputs[read_end] = KeptOutput(kept)
    code, peak_kb, late = _wait(pid, outputs, began + timeout_s)
    seconds = time.monotonic() - began
    for read_end, output in outputs.items():
        taken = 0
        while taken < _LAST_BYTES and (size := _take(read_end, output)):
            taken += size
    stdout, stderr = (output.text().encode() for output in outputs.values())
    answer = {"code": code, "peak_kb": peak_kb, "late": late, "seconds": seconds}
    kills = {"memory_kills": memory_kills() - killed_before}
    return {**answer, **kills, "split": len(stdout)}, stdout + stderr


def _become(
    given: bytes,
    streams: list[int],
    filters: dict[str, str],
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    processes: int,
) -> None:
    """Become the command; never returns."""
    try:
        os.setsid()
        stdin = os.memfd_create("stdin")
        os.write(stdin, given)
        os.lseek(stdin, 0, os.SEEK_SET)
        for target, stream in enumerate((stdin, *streams)):
            os.dup2(stream, target)
        os.closerange(3, 64)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # only then may it write below /proc/self
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # before this process and the first one
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        filter_calls(filters)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, {**_environ(), **env})
    except OSError as error:
        about = cwd if error.filename == cwd else argv[0]
        os.write(2, f"cannot run {about}: {error.strerror}\n".encode(errors="replace"))
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN)


def _environ() -> dict[str, str]:
    """Return the variables of the image, without those of the cluster."""
    known = {"HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp"}
    return {**known, **{k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_")}}


def _wait(pid: int, outputs: dict[int, KeptOutput], ends_at: float) -> tuple[int, int, bool]:
    """Wait for a command; return its exit code, its peak memory [KiB], and whether it was late."""
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    reading, late = {0, wakes, *outputs}, False
    while True:
        ended = _collect(pid)
        if ended is not None:
            return os.waitstatus_to_exitcode(ended[0]), ended[1].ru_maxrss, late
        left = 1.0 if late else ends_at - time.monotonic()
        ready, _, _ = select.select(reading, [], [], max(0.0, left))
        gone = 0 in ready and not os.read(0, 4096)
        if gone or late or time.monotonic() >= ends_at:
            late = True
            reading.discard(0)
            _kill(lambda parents: _descendants(os.getpid(), parents))
        if wakes in ready:
            os.read(wakes, 4096)
        for read_end in outputs.keys() & set(ready):
            if not _take(read_end, outputs[read_end]):
                reading.discard(read_end)


def _collect(pid: int) -> "tuple[int, Any] | None":
    """Collect ended descendants; return status and usage of the command if it is among them."""
    found = None
    try:
        while True:
            child, status, usage = os.wait4(-1, os.WNOHANG)
            if child == pid:
                found = (status, usage)
            elif not child:
                return found
    except ChildProcessError:
        return found


def _take(read_end: int, output: KeptOutput) -> int:
    try:
        data = os.read(read_end, _PIECE)
    except BlockingIOError:
        return 0
    output.add(data)
    return len(data)


def _kill(chosen: Callable[[dict[int, int]], set[int]]) -> None:
    """Kill the processes that a function of all parents chooses, until none is left."""
    while victims := chosen(_parents()):
        for victim in victims:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _parents() -> dict[int, int]:
    """Return the parent of each living process by id."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat", errors="replace") as file:
                state, parent, *_ = file.read().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            parents[int(name)] = int(parent)
    return parents


def _descendants(root: int, parents: dict[int, int]) -> set[int]:
    family, before = {root}, 0
    while len(family) != before:
        before = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return family - {root}


def _of_commands(parents: dict[int, int]) -> set[int]:
    """Return all processes but the first one and those that an exec has started."""
    return {pid for pid, parent in parents.items() if parent != 0}


def count(given: bytes) -> Answer:
    """Count the processes in the box beside its own."""
    return {"processes": len(_of_commands(_parents()))}, b""


def kill_all(given: bytes) -> Answer:
    """Kill every process of a command."""
    _kill(_of_commands)
    return {}, b""


def memory_kills() -> int:
    """Return how many processes the kernel has killed since the box had no memory left."""
    for path in _COUNTERS:
        try:
            with open(path) as file:
                counters = dict(line.split() for line in file)
            return int(counters.get("oom_kill", 0))
        except (OSError, ValueError):
            continue
    return 0


def reach(given: bytes, attempts: int) -> Answer:
    """Try to reach the cluster's own interface, which a box must not."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    for _ in range(attempts):
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            return {"reached": ""}, b""
        time.sleep(0.5)  # a policy holds only a moment after its pod has begun
    return {"reached": f"{host}:{port}"}, b""


def read(given: bytes, path: str, most: int) -> Answer:
    """Return a regular file, or its size if that is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return {"regular": False}, b""
        if about.st_size > most:
            return {"regular": True, "size": about.st_size}, b""
        return {"regular": True, "size": about.st_size}, file.read(most)


def write(given: bytes, path: str) -> Answer:
    """Write a regular file, and the folders above it."""
    os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o644)
    with open(descriptor, "wb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return {"regular": False}, b""
        file.write(given)
    return {"regular": True}, b""


def pack(given: bytes, path: str, inner: str) -> Answer:
    """Return a path as the entry `inner` of an archive."""
    stream = io.BytesIO()
    try:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(path, inner)
    except (tarfile.TarError, ValueError) as error:
        return {"message": str(error)}, b""
    return {}, stream.getvalue()


def unpack(given: bytes, path: str) -> Answer:
    """Unpack an archive into a folder."""
    os.makedirs(path, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(given)) as archive:
            # Before Python 3.11.4 there are no filters, and all is extracted as it is.
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            archive.extractall(path)
    except tarfile.TarError as error:
        return {"message": str(error)}, b""
    return {}, b""


def main(request: dict[str, Any], given: bytes) -> None:
    """Do what a request says, and write the answer to the standard output."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no command looks into this process
    answer, data = serve(request, given)
    with open(1, "wb", closefd=False) as out:
        out.write(json.dumps(answer).encode() + b"\n" + data)
