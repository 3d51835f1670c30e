"""The lease that lets one process drive a run, in a local or shared folder or in S3.

A lease is a small file in the folder of its run that names its holder, which renews it. Another
process gets it if the holder has certainly ended, or if the holder cannot be seen from there (it is
on another machine, or in another container where locks do not work) and has not renewed the lease
for `EXPIRES_S`. From a holder that is seen alive but has not renewed it for that long, as one that
hangs, a process gets it on request.

Each holder has a higher term than those before it. The term is the fencing token of a run: every
commit carries it, and no writer of a lower term can commit (`table_log`). So a late holder can
neither write nor keep the new one from writing.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from rollart_flow.errors import RunFailedError
from rollart_flow.store import files
from rollart_flow.store.lease_file import EXPIRES_S, LeaseFile, LeaseState, Tenure
from rollart_flow.store.owner import Owner

RENEW_S = 15.0
"""Time between renewals."""


class Lease:
    """The lease of one run, as a context: held from enter to exit.

    Args:
        run: address of the run.
        term: term of the last driver that is known otherwise.
        take_over: take the lease also from a process that is alive, once it has run out.
    """

    def __init__(self, run: str, *, term: int = 0, take_over: bool = False) -> None:
        self._run = run
        self._least = term
        self._take_over = take_over
        self._token = uuid4().hex
        self._renewals = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._tell: Callable[[str], None] | None = None
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            RunFailedError: another process holds it; the message says what to wait for.
            StoreError: the store does not answer.
        """
        with files.converting(f"cannot take the lease of {self._run}"):
            self._file = lease_file(self._run)
            there = self._file.look()
            _refuse_held(self._run, there, take_over=self._take_over)
            last = 0 if there is None else there.tenure.term
            self.tenure = Tenure(Owner.this_process(), max(last, self._least) + 1)
            tag = self._file.claim(self._said(), there)
        if tag is None:
            raise RunFailedError(f"another process took run {self._run} at the same moment")
        self._tag = tag
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
        if self._lost is None:
            with suppress(OSError):  # one that cannot be given back expires
                self._file.release(self._said(released=True), self._tag)

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Call back with one line, from another thread, once another process has the lease."""
        with self._lock:
            self._tell = tell
            if self._lost is not None:
                tell(self._lost)

    def _renew(self) -> None:
        """Renew until the end, or until the lease is lost; an unreachable store is retried."""
        while not self._over.wait(RENEW_S):
            self._renewals += 1
            try:
                tag = self._file.renew(self._said(), self._tag)
                now = self._file.look() if tag is None else None
            except OSError:
                continue
            if tag is not None:
                self._tag = tag
            elif now is None or now.token != self._token:
                self._lose(now)
                return
            else:  # the answer to an earlier renewal was lost
                self._tag = now.tag

    def _lose(self, now: LeaseState | None) -> None:
        taker = "its lease was removed"
        if now is not None:
            taker = f"process {now.tenure.owner.pid} on {now.tenure.owner.host} took it over"
        with self._lock:
            self._lost = f"this process does not drive run {self._run} any more: {taker}"
            if self._tell is not None:
                self._tell(self._lost)

    def _said(self, *, released: bool = False) -> dict[str, Any]:
        """Content of the lease; it differs at every renewal, so that its tag differs."""
        return {
            "owner": asdict(self.tenure.owner),
            "term": self.tenure.term,
            "token": self._token,
            "renewals": self._renewals,
            "released": released,
        }


def is_driven(run: str, owner: Owner) -> bool:
    """Whether a process drives a run that was not ended, as far as can be known.

    Args:
        run: address of the run.
        owner: process that `run.json` names, for a run without a lease.

    Raises:
        StoreError: the store does not answer.
    """
    with files.converting(f"cannot read the lease of {run}"):
        file = lease_file(run)
        there = file.look()
        if there is not None:
            return there.held
        return not owner.gone if owner.here else file.age_of_run_s() <= EXPIRES_S


def check_free(run: str, owner: Owner, *, take_over: bool = False) -> None:
    """Refuse a run that was not ended and that another process drives.

    Args:
        run: address of the run.
        owner: process that `run.json` names, for a run without a lease.
        take_over: accept that a process is alive whose lease has run out.

    Raises:
        RunFailedError: the message names the process, and says what to wait for.
        StoreError: the store does not answer.
    """
    with files.converting(f"cannot read the lease of {run}"):
        there = lease_file(run).look()
    _refuse_held(run, there, take_over=take_over)
    if there is None and is_driven(run, owner):
        raise RunFailedError(f"{_running(run, owner)}; wait for it or stop it first")


def lease_file(run: str) -> LeaseFile:
    """The file of the lease of a run, local or in S3.

    Raises:
        OSError: the bucket of the run cannot be reached.
        MissingExtraError: boto3 is not installed.
    """
    if files.is_remote(run):
        from rollart_flow.store.s3.lease import S3LeaseFile

        return S3LeaseFile(run)
    from rollart_flow.store.local_lease import LocalLeaseFile

    return LocalLeaseFile(run)


def _refuse_held(run: str, there: LeaseState | None, *, take_over: bool) -> None:
    if there is None or not there.held or (take_over and there.expired):
        return
    said = _running(run, there.tenure.owner)
    name = files.split(run)[1]
    if there.expired:
        raise RunFailedError(
            f"{said} and has not renewed its lease for {there.age_s:.0f} s; stop it first, "
            f"or `rollart resume {name} --take-over`"
        )
    raise RunFailedError(
        f"{said} and renewed its lease {there.age_s:.0f} s ago; wait for it or stop it first; if "
        f"it is lost, `rollart resume {name} --take-over` {EXPIRES_S:.0f} s after its last renewal"
    )


def _running(run: str, owner: Owner) -> str:
    return f"run {files.split(run)[1]} is running (process {owner.pid} on {owner.host})"
