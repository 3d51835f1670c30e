"""The two servers of a Mooncake store: `mooncake_master` (names) and `mooncake_client` (memory).

One thread starts them, reads their output and waits for their end. Neither is useful without the
other, so if one ends, both are restarted once under the same address and empty; the publisher must
publish again. The invariant: the servers end with `close`, and with this process however it ends.
"""

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from rollart_flow.blocked import blocking
from rollart_flow.errors import WeightsError
from rollart_flow.isolation import die_with_parent
from rollart_flow.weights.mooncake.package import package_folder
from rollart_flow.weights.mooncake.rdma import check_protocol
from rollart_flow.weights.transport import TCP, TransferSettings, WeightServers

RESTARTS = 1
"""Maximum number of restarts of both servers."""
LEAST_SEGMENT_BYTES = 256 << 20
_SMALL_BYTES = 64 << 20
"""Additional space for indexes and manifests, and for fragmentation."""
_READY = b"Starting real client service"
"""Output of the client once the master knows its memory."""
_START_S = 60.0


def segment_bytes(model_bytes: int, keep_versions: int) -> int:
    """Return the memory for kept versions, one being published and one that is still read."""
    return max(LEAST_SEGMENT_BYTES, (keep_versions + 2) * model_bytes + _SMALL_BYTES)


class MooncakeServers(WeightServers):
    """Both servers of a Mooncake store, on free ports.

    The servers accept requests from any host that reaches them; Mooncake's data ports bind all
    interfaces and have no password.
    """

    name = "mooncake"

    def __init__(
        self,
        segment: int,
        *,
        host: str = "127.0.0.1",
        lease_s: float = 5.0,
        transfer: TransferSettings = TCP,
    ) -> None:
        """Start the servers and return once they serve.

        Args:
            segment: bytes of memory for weights.
            host: address of this machine at which readers reach them.
            lease_s: seconds for which a read value is not removed; longer than the pull of one
            bucket.
            transfer: protocol and devices of the transfer.

        Raises:
            MissingExtraError: Mooncake is not installed.
            SettingsError: this machine has no device for the protocol.
            WeightsError: the servers cannot be started; the message has their last output line.
        """
        check_protocol(transfer)
        self._transfer = transfer
        master, metrics, client = _free_ports(host)
        self.address = f"{host}:{master}"
        self._programs = (
            _master(host, master, metrics, lease_s),
            _client(host, client, self.address, transfer, segment),
        )
        self.pids = ()  # of the master and the client
        self.starts = 0
        """Number of times that both were started; above one, versions published before are lost."""
        self.restarted = threading.Event()
        """Event set once both serve again after one of them ended."""
        self.ended = threading.Event()
        """Event set once neither server runs."""
        self._said: deque[str] = deque(maxlen=20)
        self._ready = threading.Event()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._supervise, name="weight-servers")
        self._thread.start()
        with blocking(f"start of the Mooncake servers at {self.address}"):
            ready = self._ready.wait(_START_S)
        if not ready or not self.pids:
            self.close()
            said = self._said[-1] if self._said else "no word of them"
            raise WeightsError(f"the Mooncake servers cannot be started at {self.address}: {said}")

    @property
    def weights(self) -> str:
        return self._transfer.named(f"{self.name}://{self.address}")

    @property
    def lost(self) -> bool:
        return self.starts > 1 or not self.pids

    def close(self) -> None:
        self._waker.close()
        self._thread.join()
        self._wake.close()

    def _supervise(self) -> None:
        """Run both servers; the kernel ends them with this thread, which starts them."""
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
        """Read the servers' output; return True when one ends, False when they are to close."""
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
        env={**os.environ, "MC_LOG_LEVEL": "INFO"},  # the ready message has this level
    )


def _master(host: str, port: int, metrics: int, lease_s: float) -> tuple[str, ...]:
    """Return the command of the server of names."""
    return (
        str(package_folder() / "mooncake_master"),
        f"--rpc_address={host}",
        f"--rpc_port={port}",
        "--metrics_host=127.0.0.1",
        f"--metrics_port={metrics}",
        f"--default_kv_lease_ttl={int(lease_s * 1000)}",
        "--enable_metric_reporting=false",
    )


def _client(
    host: str, port: int, master: str, transfer: TransferSettings, segment: int
) -> tuple[str, ...]:
    """Return the command of the server that holds the memory."""
    return (
        str(package_folder() / "mooncake_client"),
        f"--host={host}",
        f"--port={port}",
        f"--master_server_address={master}",
        "--metadata_server=P2PHANDSHAKE",
        f"--protocol={transfer.protocol}",
        f"--device_names={','.join(transfer.rdma_devices)}",
        f"--global_segment_size={segment}",
    )


def _free_ports(host: str) -> tuple[int, int, int]:
    """Return three free ports."""
    sockets = [socket.create_server((host, 0)) for _ in range(3)]
    master, metrics, client = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return master, metrics, client
