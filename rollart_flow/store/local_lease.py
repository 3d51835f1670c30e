"""The lease of a run in a local folder, or in one that several machines share.

Each term has a file of its own, `lease-TERM.json`. A file appears complete, with an exclusive name,
so that one of several processes gets a term; the highest term counts. The holder keeps its file
locked where the file system has locks, so that a process of the same machine in another container
sees whether the holder runs, and renews the lease by the file's time of change.
"""

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rollart_flow.store.lease_file import LeaseFile, LeaseState, state
from rollart_flow.store.owner import Owner

_NAME = re.compile(r"lease-(\d{6,})\.json")
_UNKNOWN = {"host": "an unknown machine", "pid": 0, "started": "unknown"}


class LocalLeaseFile(LeaseFile):
    """The file of the lease of a run.

    Args:
        run: path of the run's folder.
    """

    def __init__(self, run: str) -> None:
        self._folder = run
        self._handle: int | None = None

    def look(self) -> LeaseState | None:
        while terms := self._terms():
            try:
                handle = os.open(self._path(terms[-1]), os.O_RDONLY)
            except FileNotFoundError:
                continue  # it was removed after a higher term had begun
            try:
                return self._state(terms[-1], handle)
            finally:
                os.close(handle)
        return None

    def claim(self, said: Mapping[str, Any], after: LeaseState | None) -> str | None:
        os.makedirs(self._folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=".lease.")
        try:
            locked = _lock(handle, fcntl.LOCK_EX)
            os.write(handle, json.dumps({**said, "locked": locked}).encode())
            os.fchmod(handle, 0o644)
            os.fsync(handle)
            os.link(temporary, self._path(said["term"]))
        except FileExistsError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        finally:
            os.unlink(temporary)
        self._handle = handle
        for term in self._terms():
            if term < said["term"]:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(term))
        return str(said["term"])

    def renew(self, said: Mapping[str, Any], tag: str) -> str | None:
        if not self._is_held(said["term"]):
            return None
        assert self._handle is not None
        os.utime(self._handle)
        return tag

    def release(self, said: Mapping[str, Any], tag: str) -> None:
        assert self._handle is not None
        try:
            if self._is_held(said["term"]):
                os.pwrite(self._handle, json.dumps(said).encode().ljust(_size(self._handle)), 0)
        finally:
            os.close(self._handle)

    def age_of_run_s(self) -> float:
        return max(0.0, time.time() - os.stat(os.path.join(self._folder, "run.json")).st_mtime)

    def _is_held(self, term: int) -> bool:
        """Whether the file of a term is the one that this object wrote, and the newest one."""
        assert self._handle is not None
        if self._terms()[-1:] != [term]:
            return False
        try:
            there = os.stat(self._path(term))
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._handle))

    def _state(self, term: int, handle: int) -> LeaseState:
        said = _content(os.read(handle, _size(handle))) | {"term": term}
        owner = Owner(**said["owner"])
        alive = None
        if owner.same_kernel and said.get("locked"):
            alive = not _lock(handle, fcntl.LOCK_SH)
        now = time.time() if owner.here else self._now()
        return state(said, max(0.0, now - os.fstat(handle).st_mtime), str(term), alive)

    def _now(self) -> float:
        """The time of the machine that stores the folder, if this process may write there."""
        try:
            handle, path = tempfile.mkstemp(dir=self._folder, prefix=".lease.")
        except OSError:
            return time.time()
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
            os.unlink(path)

    def _terms(self) -> list[int]:
        """The terms that have a file, the newest last."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def _path(self, term: int) -> str:
        return os.path.join(self._folder, f"lease-{term:06d}.json")


def _lock(handle: int, kind: int) -> bool:
    """Lock a file; False if it is locked, or if the file system has no locks."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _size(handle: int) -> int:
    return os.fstat(handle).st_size


def _content(data: bytes) -> dict[str, Any]:
    """The content of a lease; a damaged one names nobody, and can be taken once it has run out."""
    try:
        said = json.loads(data)
        Owner(**said["owner"])
    except (KeyError, TypeError, ValueError):
        return {"owner": _UNKNOWN}
    return dict(said)
