"""A real S3 server for tests: SeaweedFS on loopback, in a folder of its own.

The whole server is one process. It listens on eight ports of this machine that were free a moment
before, knows two users (one may do everything, one may only read), and ends with its context. Its
data outlives a restart, as that of a real store would.
"""

import json
import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

WEED = Path(sysconfig.get_path("scripts")) / "weed"
REGION = "us-east-1"
BUCKET = "runs"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody whom the server knows."""

    name: str
    key: str
    secret: str
    actions: tuple[str, ...]


OWNER = User("owner", "OWNERKEY", "the-secret-of-the-owner", ("Admin",))
READER = User("reader", "READERKEY", "the-secret-of-the-reader", ("Read", "List"))
_PORTS = ("master", "volume", "filer", "s3")


@dataclass(slots=True)
class S3Server:
    """One server; `start` it, and `kill` it as a power cut would."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """URL of the S3 API."""
        return f"http://127.0.0.1:{self.ports['s3']}"

    def environment(self, user: User = OWNER) -> dict[str, str]:
        """Environment variables with which boto3 finds the server, and nobody else."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": user.key,
            "AWS_SECRET_ACCESS_KEY": user.secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": str(self.folder / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "no-credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A client of the owner's, which tries until the server is up."""
        settings = Config(
            connect_timeout=2, read_timeout=20, retries={"mode": "standard", "max_attempts": 30}
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=OWNER.key,
            aws_secret_access_key=OWNER.secret,
            region_name=REGION,
            config=settings,
        )

    def start(self) -> None:
        """Start it, on the ports that it had before, and wait until it has answered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        users = [
            {
                "name": user.name,
                "credentials": [{"accessKey": user.key, "secretKey": user.secret}],
                "actions": user.actions,
            }
            for user in (OWNER, READER)
        ]
        (self.folder / "users.json").write_text(json.dumps({"identities": users}))
        if not self.ports:
            self.ports = _free_ports()
        listen = [
            f"-{part}.port{suffix}={self.ports[part + suffix]}"
            for part in _PORTS
            for suffix in ("", ".grpc")
        ]
        environment = {**os.environ, "HOME": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    WEED, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                    "-s3", f"-s3.config={self.folder / 'users.json'}", "-s3.port.iceberg=0",
                    "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=64",
                    "-master.telemetry=false", *listen,
                ],
                stdout=log, stderr=log, cwd=self.folder, env=environment,
            )  # fmt: skip
        self.client().list_buckets()

    def kill(self) -> None:
        """End it at once; whatever it has acknowledged is there when it starts again."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


def _free_ports() -> dict[str, int]:
    """A port for each part of the server; all are held until all are known, so that they differ."""
    with ExitStack() as held:
        found = {}
        for part in _PORTS:
            for suffix in ("", ".grpc"):
                listener = held.enter_context(socket.socket())
                listener.bind(("127.0.0.1", 0))
                found[part + suffix] = int(listener.getsockname()[1])
        return found


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server that ends with the context."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
