"""The two servers of a Mooncake store: `mooncake_master` (names) and `mooncake_client` (memory).

One thread starts them, reads what they write and waits for their end. Neither is of use without
the other, so where one ends both are started anew, once, under the same address and empty: who
published has to publish again. The invariant: they end with `close`, and with this process however
it ends.
"""

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from rollart_flow.errors import WeightsError
from rollart_flow.isolation import die_with_parent
from rollart_flow.weights.mooncake.package import package_folder

RESTARTS = 1
"""Times that both are started anew."""
LEAST_SEGMENT_BYTES = 256 << 20
_SMALL_BYTES = 64 << 20
"""Room for indexes and manifests, and for what does not fit a gap."""
_READY = b"Starting real client service"
"""What the client writes once its memory is known to the master."""
_START_S = 60.0


def segment_bytes(model_bytes: int, keep_versions: int) -> int:
    """Memory for what is kept, what is published and what is still read while it is collected."""
    return max(LEAST_SEGMENT_BYTES, (keep_versions + 2) * model_bytes + _SMALL_BYTES)


class WeightServers:
    """Both servers, on free ports.

    They take requests from whoever reaches them; the data ports of Mooncake bind all interfaces
    and ask nobody for a password.
    """

    def __init__(self, segment: int, *, host: str = "127.0.0.1", lease_s: float = 5.0) -> None:
        """Start them and return once they serve.

        Args:
            segment: bytes of memory for weights.
            host: address of this machine under which readers reach them.
            lease_s: for so long what was read is not removed; longer than the pull of one bucket.

        Raises:
            MissingExtraError: Mooncake is not installed.
            WeightsError: they cannot be started; with the last line that they wrote.
        """
        master, metrics, client = _free_ports(host)
        self.address = f"{host}:{master}"
        folder = package_folder()
        self._programs = (
            (
                str(folder / "mooncake_master"),
                f"--rpc_address={host}",
                f"--rpc_port={master}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={metrics}",
                f"--default_kv_lease_ttl={int(lease_s * 1000)}",
                "--enable_metric_reporting=false",
            ),
            (
                str(folder / "mooncake_client"),
                f"--host={host}",
                f"--port={client}",
                f"--master_server_address={self.address}",
                "--metadata_server=P2PHANDSHAKE",
                "--protocol=tcp",
                f"--global_segment_size={segment}",
            ),
        )
        self.pids: tuple[int, ...] = ()
        """Process ids of master and client."""
        self.starts = 0
        """Times that both were started; above one, what was published before is gone."""
        self.restarted = threading.Event()
        """Set once both serve again after one of them ended."""
        self.ended = threading.Event()
        """Set once neither runs any more."""
        self._said: deque[str] = deque(maxlen=20)
        self._ready = threading.Event()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._supervise, name="weight-servers")
        self._thread.start()
        if not self._ready.wait(_START_S) or not self.pids:
            self.close()
            said = self._said[-1] if self._said else "no word of them"
            raise WeightsError(f"the Mooncake servers cannot be started at {self.address}: {said}")

    @property
    def lost(self) -> bool:
        """Whether what was published once may be gone."""
        return self.starts > 1 or not self.pids

    def close(self) -> None:
        """End both and wait for it. May be called twice."""
        self._waker.close()
        self._thread.join()
        self._wake.close()

    def _supervise(self) -> None:
        """The thread. It starts the servers itself: the kernel ends them with it."""
        while self.starts <= RESTARTS:
            self.starts += 1
            try:
                processes = [_start(program) for program in self._programs]
            except OSError as error:
                self._said.append(str(error))
                break
            self.pids = tuple(process.pid for process in processes)
            wanted = self._follow(processes)
            for process in processes:
                process.kill()
            for process in processes:
                process.communicate()
            if not wanted:
                break
        self.pids = ()
        self.ended.set()
        self._ready.set()

    def _follow(self, processes: "list[subprocess.Popen[bytes]]") -> bool:
        """Read what they write until one ends (true), or they are to be closed (false)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for process in processes:
                assert process.stderr is not None
                selector.register(process.stderr, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._wake:
                        return False
                    written = os.read(key.fd, 1 << 16)
                    if not written:
                        return True
                    self._said += written.decode(errors="replace").splitlines()
                    if _READY in written:
                        (self._ready if self.starts == 1 else self.restarted).set()


def _start(program: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", str(Path(die_with_parent.__file__)), str(os.getpid()), *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "MC_LOG_LEVEL": "INFO"},  # that it serves is said at this level
    )


def _free_ports(host: str) -> tuple[int, int, int]:
    """Three ports that nobody listens on now."""
    sockets = [socket.create_server((host, 0)) for _ in range(3)]
    master, metrics, client = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return master, metrics, client
