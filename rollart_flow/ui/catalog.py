"""RunCatalog: the runs that are served, by the names in the addresses of pages."""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence

from rollart_flow.errors import RunNotFoundError
from rollart_flow.store import files, resolve, store_uri
from rollart_flow.store.layout import run_names
from rollart_flow.ui.live_run import LiveRun

_OPEN = 64
"""Runs whose tables stay open."""
_NO_NAME = re.compile(r"^\.|[/\\\0]")
_LONGEST_NAME = 255
"""Longest name of a folder [bytes]."""


class RunCatalog:
    """The runs of a store, or some runs anywhere. Any thread may use it.

    Args:
        runs: names in the store, paths or URIs; all runs of the store if there are none.
        store: the store; $ROLLART_STORE or ./runs by default.

    Raises:
        RunNotFoundError: a run is not there.
    """

    def __init__(self, runs: Sequence[str] = (), store: str | None = None) -> None:
        self._store = store
        self._chosen = _named([resolve(run, store) for run in runs]) if runs else None
        self._words = {resolve(run, store): run for run in runs}
        self._lock = threading.Lock()
        self._open: OrderedDict[str, LiveRun] = OrderedDict()

    @property
    def title(self) -> str:
        """Address of the store, or the names of the chosen runs."""
        return store_uri(self._store) if self._chosen is None else ", ".join(self._chosen)

    def addresses(self) -> dict[str, str]:
        """Return the address of every run by its name, in the order of names."""
        if self._chosen is not None:
            return dict(self._chosen)
        root = store_uri(self._store)
        return {name: files.join(root, name) for name in run_names(self._store)}

    def name_of(self, uri: str) -> str | None:
        """Return the name of the run at an address; None if it is not served."""
        return next((name for name, each in self.addresses().items() if each == uri), None)

    def open(self, name: str) -> LiveRun:
        """Return a run by its name.

        Raises:
            RunNotFoundError: there is no run of this name.
            StoreError: it is damaged, or has a newer schema version.
        """
        with self._lock:
            uri = self._address(name)
            if (found := self._open.get(uri)) is None:
                found = self._open[uri] = LiveRun(uri)
            self._open.move_to_end(uri)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return found

    def words(self, name: str) -> list[str]:
        """Return the words that name a run on the command line, as the user named it."""
        word = name if self._chosen is None else self._words[self._chosen[name]]
        return [word] if self._store is None else [word, "--store", self._store]

    def _address(self, name: str) -> str:
        if self._chosen is not None:
            if name not in self._chosen:
                raise RunNotFoundError(f"no run {name!r} is served; there are {self.title}")
            return self._chosen[name]
        if not 0 < len(name.encode()) <= _LONGEST_NAME or _NO_NAME.search(name):
            raise RunNotFoundError(f"no run {name[:80]!r}: this is no name of one")
        return resolve(files.join(store_uri(self._store), name))


def _named(uris: Sequence[str]) -> dict[str, str]:
    """Return addresses by their last part, with a number where several have the same."""
    named: dict[str, str] = {}
    for uri in dict.fromkeys(uris):
        base = name = uri.rstrip("/").rpartition("/")[2]
        number = 1
        while name in named:
            number += 1
            name = f"{base}~{number}"
        named[name] = uri
    return named
