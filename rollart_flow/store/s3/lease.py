"""The lease of a run in S3: an object that names the process that drives the run.

A conditional put claims the lease, so one of several processes gets it, and its holder renews it. A
killed holder leaves it behind: a process on the same machine sees that the holder has ended, and on
another machine the lease expires `EXPIRES_S` after its last renewal, by the server's clock. The
invariant: a lease that is renewed is never taken. The writer keeps a late holder from writing
(`FencedError`).
"""

import json
import threading
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self
from uuid import uuid4

from rollart_flow.errors import RunFailedError
from rollart_flow.store import files
from rollart_flow.store.owner import Owner
from rollart_flow.store.s3.blobs import S3Blobs

RENEW_S = 15.0
"""Time between renewals."""
EXPIRES_S = 60.0
"""Time without a renewal after which another machine may take a lease."""
_LEASE, _INFO = "lease.json", "run.json"


class S3Lease:
    """The lease of one run, as a context: held from enter to exit.

    Args:
        run: address of the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._token = uuid4().hex
        self._renewals = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            RunFailedError: another process holds it; the message names the process.
            StoreError: the store does not answer.
        """
        with files.converting(f"cannot take the lease of {self._run}"):
            self._blobs = S3Blobs(self._run)
            self._tag = self._taken()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # one that cannot be given back expires
            there = self._blobs.look(_LEASE)
            if there is not None and there.tag == self._tag:
                self._blobs.remove(_LEASE)

    def _taken(self) -> str:
        tag = self._blobs.claim(_LEASE, self._content())
        if tag is not None:
            return tag
        there = self._blobs.look(_LEASE)
        if there is not None:
            holder = _holder(there.data)
            if there.age_s <= EXPIRES_S and not holder.gone:
                raise RunFailedError(
                    f"run {self._run} is driven by process {holder.pid} on {holder.host}, which "
                    f"said so {there.age_s:.0f} s ago; wait for it or stop it first; if that "
                    f"machine is lost, try again {EXPIRES_S:.0f} s after its last renewal"
                )
            tag = self._blobs.swap(_LEASE, self._content(), there.tag)
        if tag is None:
            raise RunFailedError(f"another process took run {self._run} at the same moment")
        return tag

    def _renew(self) -> None:
        """Renew until the end, or until the lease is lost; an unreachable server is retried."""
        while not self._over.wait(RENEW_S):
            self._renewals += 1
            try:
                tag = self._blobs.swap(_LEASE, self._content(), self._tag)
            except OSError:
                continue
            if tag is None:
                return
            self._tag = tag

    def _content(self) -> bytes:
        """Content of the lease; it differs at every renewal, so that its tag differs."""
        said = {"owner": asdict(Owner.this_process()), "token": self._token}
        return json.dumps(said | {"renewals": self._renewals}).encode()


def is_expired(run: str) -> bool:
    """Whether the lease of a run was not renewed for `EXPIRES_S`.

    For a run that has no lease yet, the age of its `run.json` counts.
    """
    blobs = S3Blobs(run)
    sign = blobs.look(_LEASE) or blobs.look(_INFO)
    return sign is None or sign.age_s > EXPIRES_S


def _holder(data: bytes) -> Owner:
    return Owner(**json.loads(data)["owner"])
