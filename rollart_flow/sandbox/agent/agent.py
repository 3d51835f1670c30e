"""The first process in a box: it starts commands and opens files for the holder of the box.

Run as a script, by an interpreter that loads little, with a socket (SOCK_SEQPACKET; its descriptor,
or the path that the holder listens at), the limit of processes, the memory of one process in bytes
(0 means no limit for either), the lifetime of the box in seconds and, where nothing else has set
one, a filter of system calls in hexadecimal digits (`seccomp`). Requests come as marshalled tuples
`(id, operation, ...)` together with descriptors; the agent trusts them. Answers are lines of text,
since the holder trusts nothing from a box:

    ready                                   once, at the start
    ID ended STATUS PEAK_KB                 a command, or an archive that was packed or unpacked
    ID refused ERRNO                        nothing could be started or opened
    ID opened                               with one descriptor
    ID counted NUMBER                       of processes, beside the agent

Invariants: a command holds no descriptor beyond its three streams. The box ends with the agent, and
the agent ends when the socket closes or the lifetime is over.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # signal loads enum, which is slow
import _socket
import marshal
import os
import resource
import sys
from select import POLLIN, poll
from time import monotonic

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable

_LONGEST_REQUEST_BYTES = 1 << 18
_MOST_DESCRIPTORS = 3
_MOST_INHERITED = 1024
"""Descriptors below this number are closed at the start, such as that of bubblewrap's status."""
_CANNOT_RUN, _NOT_FOUND = 126, 127
_NO_NEW_PRIVILEGES, _SECCOMP = 38, 22  # numbers of prctl
_STARTED = 19
"""Index of the start time in the fields of `_state`."""


class Agent:
    """Serves the holder of the box until the socket closes."""

    def __init__(self, connection: _socket.socket, processes: int, memory: int) -> None:
        self._connection = connection
        self._processes = processes
        self._memory = memory
        self._running: dict[int, int] = {}  # id of the request by process
        self._together: set[int] = set()  # requests that ran while another one did

    def serve(self, ends_at: float) -> None:
        """Answer requests and report ended commands, until the socket closes or time is over."""
        wakes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poller = poll()
        poller.register(self._connection.fileno(), POLLIN)
        poller.register(wakes, POLLIN)
        self._answer("ready")
        while (left := ends_at - monotonic()) > 0:
            for descriptor, _ in poller.poll(left * 1000):
                if descriptor == wakes:
                    os.read(wakes, 4096)
                    self._reap()
                elif not self._serve_one():
                    return

    def _serve_one(self) -> bool:
        """Serve one request; False if the socket is closed."""
        size = _socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
        data, control, _, _ = self._connection.recvmsg(_LONGEST_REQUEST_BYTES, size)
        if not data:
            return False
        descriptors = []
        for _, _, packed in control:
            for start in range(0, len(packed), 4):
                descriptors.append(int.from_bytes(packed[start : start + 4], sys.byteorder))
        identity, operation, *arguments = marshal.loads(data)
        try:
            getattr(self, f"_{operation}")(identity, descriptors, *arguments)
        except OSError as error:
            self._answer(f"{identity} refused {error.errno}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _answer(self, line: str, descriptor: int | None = None) -> None:
        control = []
        if descriptor is not None:
            packed = descriptor.to_bytes(4, sys.byteorder)
            control.append((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed))
        self._connection.sendmsg([line.encode()], control)

    def _reap(self) -> None:
        """Collect every process that has ended; report those that the holder asked for."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            identity = self._running.pop(pid, None)
            if identity is not None:
                self._together.discard(identity)
                code = os.waitstatus_to_exitcode(status)
                self._answer(f"{identity} ended {code} {usage.ru_maxrss}")

    def _run(
        self, identity: int, streams: list[int], argv: list[str], env: dict[str, str], cwd: str
    ) -> None:
        pid = os.fork()
        if pid:
            self._add(pid, identity)
            return
        try:
            self._become_command(streams)
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            about = cwd if error.filename == cwd else argv[0]
            os.write(2, f"cannot run {about}: {error.strerror}\n".encode(errors="replace"))
            missing = isinstance(error, FileNotFoundError)
            os._exit(_NOT_FOUND if missing else _CANNOT_RUN)

    def _add(self, pid: int, identity: int) -> None:
        """Note a process that was started for a request."""
        self._running[pid] = identity
        if len(self._running) > 1:
            self._together.update(self._running.values())

    def _become_command(self, streams: list[int]) -> None:
        """Turn a fork of the agent into a process group leader with three streams of its own."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.closerange(3, max(streams) + 1)
        if self._processes:
            resource.setrlimit(resource.RLIMIT_NPROC, (self._processes, self._processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._memory:
            resource.setrlimit(resource.RLIMIT_AS, (self._memory, self._memory))

    def _open(self, identity: int, descriptors: list[int], path: str, flags: int) -> None:
        if flags & os.O_CREAT:
            os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        opened = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
        try:
            self._answer(f"{identity} opened", opened)
        finally:
            os.close(opened)

    def _pack(self, identity: int, streams: list[int], path: str, inner: str) -> None:
        self._archive(identity, streams, path, inner, writes=True)

    def _unpack(self, identity: int, streams: list[int], path: str, inner: str) -> None:
        self._archive(identity, streams, path, inner, writes=False)

    def _archive(
        self, identity: int, streams: list[int], path: str, inner: str, *, writes: bool
    ) -> None:
        """Pack a path as the archive's entry `inner`, or unpack into a folder, in a child."""
        pid = os.fork()
        if pid:
            self._add(pid, identity)
            return
        code = 1
        try:
            self._become_command(streams)
            import tarfile

            if writes:
                with os.fdopen(1, "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
                    archive.add(path, inner, filter=_of_the_root() if path == "/" else None)
            else:
                os.makedirs(path, exist_ok=True)
                with tarfile.open(fileobj=os.fdopen(0, "rb"), mode="r|") as archive:
                    # Before Python 3.11.4 there are no filters, and all is extracted as it is.
                    archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
                    archive.extractall(path)
            code = 0
        except Exception as error:  # noqa: BLE001 - the message is the answer
            os.write(2, str(error).encode(errors="replace"))
        finally:
            os._exit(code)

    def _count(self, identity: int, descriptors: list[int]) -> None:
        others = {pid for pid in os.listdir("/proc") if pid.isdecimal()} - {str(os.getpid())}
        self._answer(f"{identity} counted {sum(_state(pid)[0] != 'Z' for pid in others)}")

    def _kill(self, identity: int, descriptors: list[int], victim: int) -> None:
        """Kill the command of a request with its descendants, also those in other sessions.

        A descendant whose parents have ended is a child of the agent. It is recognized by its start
        while no other command ran.
        """
        roots = {pid for pid, of in self._running.items() if of == victim}
        alone = victim not in self._together
        since = min(((int(_state(str(pid))[_STARTED]), pid) for pid in roots), default=(0, 0))
        while roots:
            if alone:
                roots |= {pid for pid in _orphans(since) if pid not in self._running}
            for pid in _family(roots):
                _kill_one(pid)
            roots = {pid for pid in _family(roots) - roots if _state(str(pid))[0] != "Z"}

    def _kill_all(self, identity: int, descriptors: list[int]) -> None:
        _kill_one(-1)
        self._answer(f"{identity} counted 0")


def _of_the_root() -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Return a filter for an archive of the whole root, without what is mounted into the box."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [line.split()[4] for line in file]
    left_out = {os.fsdecode(point.decode("unicode_escape").encode("latin-1")) for point in points}
    left_out = {*left_out - {"/"}, "/tmp", "/run"}
    return lambda entry: None if entry.name.removeprefix(".") in left_out else entry


def _kill_one(pid: int) -> None:
    try:  # contextlib takes 2 ms to load
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _family(roots: set[int]) -> set[int]:
    """Return the roots with their descendants, and all that share a session with one of them."""
    parents, sessions = {}, {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != "1":
            _, parent, _, session, *_ = _state(name)
            parents[int(name)], sessions[int(name)] = int(parent), int(session)
    family = set(roots)
    before = -1
    while before != len(family):
        before = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
        family |= {pid for pid, session in sessions.items() if session in family}
    return family


def _orphans(since: tuple[int, int]) -> set[int]:
    """Return the agent's children that are younger than a process: start time [ticks] and id."""
    states = {int(name): _state(name) for name in os.listdir("/proc") if name.isdecimal()}
    return {pid for pid, s in states.items() if s[1] == "1" and (int(s[_STARTED]), pid) > since}


def _state(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on; those of a zombie if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["Z", *"0" * _STARTED]


def _filter_calls(program: bytes) -> None:
    """Have the kernel filter the system calls of this process and of all that it starts."""
    import ctypes

    instructions = ctypes.create_string_buffer(program, len(program))
    described = (ctypes.c_uint64 * 2)(len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, 2, ctypes.byref(described))):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the system calls cannot be filtered")


def main() -> None:
    """Serve the socket that the first argument names."""
    place, processes, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if place.isdecimal():
        connection = _socket.socket(fileno=int(place))
    else:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        connection.connect(place)
    descriptor = connection.fileno()
    os.set_inheritable(descriptor, False)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, _MOST_INHERITED)
    if len(sys.argv) > 5:
        _filter_calls(bytes.fromhex(sys.argv[5]))
    agent = Agent(connection, processes, memory)
    agent.serve(monotonic() + float(sys.argv[4]))


if __name__ == "__main__":
    main()
    os._exit(0)
