"""Cache of judgements by content hash: the newest in memory, all of them in a folder.

Invariant: a judgement found under a key is the one stored under it, complete; a damaged file counts
as absent and is rewritten.
"""

import asyncio
import json
import math
import os
import tempfile
from collections import OrderedDict
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from weakref import WeakValueDictionary

from rollart_flow.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Judgement:
    """One reply of a judge."""

    key: str
    model: str
    score: float
    reply: str
    """The complete reply."""


def content_key(*parts: str) -> str:
    """Return the SHA-256 over texts, as hex digits; the boundaries between texts are included."""
    return sha256(json.dumps(parts).encode()).hexdigest()


class Judgements:
    """A cache of judgements. Copies in other processes share the folder, not the memory."""

    def __init__(self, folder: str | Path | None = None, size: int = 4096) -> None:
        """Create an empty cache.

        Args:
            folder: folder with one JSON file for each judgement, created on first use; None to
                cache in memory only.
            size: largest number of judgements in memory; the least recently used are evicted first.

        Raises:
            SettingsError: the size is below 1.
        """
        if size < 1:
            raise SettingsError(f"judge: size of the cache is {size}; it must be at least 1")
        self._folder = None if folder is None else Path(folder)
        self._size = size
        self._newest: OrderedDict[str, Judgement] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __reduce__(self) -> tuple[type["Judgements"], tuple[Path | None, int]]:
        return type(self), (self._folder, self._size)

    def __repr__(self) -> str:
        return (
            f"Judgements(folder={str(self._folder) if self._folder else None!r}, size={self._size})"
        )

    def turn(self, key: str) -> asyncio.Lock:
        """Return the lock of a key, to hold from its lookup until its judgement is stored.

        With the lock, equal contents that arrive concurrently are judged once.
        """
        return self._turns.setdefault(key, asyncio.Lock())

    def get(self, key: str) -> Judgement | None:
        """Return the judgement stored under a key, or None."""
        found = self._newest.get(key) or self._read(key)
        if found is not None:
            self._remember(found)
        return found

    def put(self, judgement: Judgement) -> None:
        """Store a judgement under its key.

        Raises:
            OSError: the folder cannot be written.
        """
        self._remember(judgement)
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{judgement.key}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(asdict(judgement), stream)
            os.replace(temporary, self._file(self._folder, judgement.key))
        except BaseException:
            os.unlink(temporary)
            raise

    def _remember(self, judgement: Judgement) -> None:
        self._newest[judgement.key] = judgement
        self._newest.move_to_end(judgement.key)
        if len(self._newest) > self._size:
            self._newest.popitem(last=False)

    def _read(self, key: str) -> Judgement | None:
        if self._folder is None:
            return None
        try:
            found = Judgement(**json.loads(self._file(self._folder, key).read_bytes()))
            good = found.key == key and math.isfinite(found.score)
        except (OSError, ValueError, TypeError):  # absent, torn, or not a judgement
            return None
        return found if good and isinstance(found.reply, str) else None

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"
