"""Errors of a run's processes, told to the driver's terminal as they appear in the run's logs.

Each kind of error is told once, in one line with the command that shows its traceback; the tables
and the logs have every single one.
"""

import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollart_flow.resources.logs import PERIOD_S, copy_last_lines
from rollart_flow.store.logs import logs_folder
from rollart_flow.telemetry import OnProgress, Progress
from rollart_flow.text import NewTexts, one_line

_ERROR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ERROR (.+)")
_MOST = 20
"""Kinds of errors that are told."""
_FILE = re.compile(r"(.+)-\d+\.log")


class LoggedErrors:
    """Reads the errors that were added to the logs of a run since it was made or last asked."""

    def __init__(self, run: str) -> None:
        self._folder = logs_folder(run)
        self._name = run.rstrip("/").rpartition("/")[2]
        self._read = {path: path.stat().st_size for path in self._files()}
        self._new = NewTexts(_MOST)

    def _files(self) -> list[Path]:
        return [path for path in sorted(self._folder.glob("*-*.log")) if _FILE.fullmatch(path.name)]

    def new(self) -> list[str]:
        """Return a line for each new kind of error."""
        found = []
        for path in self._files():
            with suppress(OSError):
                found += self._in(path)
        return found

    def _in(self, path: Path) -> list[str]:
        """New errors in one file; a file that became shorter begins anew."""
        at = self._read.get(path, 0)
        size = path.stat().st_size
        if size == at:
            return []
        with open(path, "rb") as stream:
            stream.seek(at if size > at else 0)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = (at if size > at else 0) + len(whole)
        errors = map(_ERROR.match, whole.decode(errors="replace").splitlines())
        process = path.name.rsplit("-", 1)[0]
        return [
            f"{process}: {one_line(error[1])} (rollart logs {shlex.quote(self._name)}"
            f" --worker {shlex.quote(process)})"
            for error in errors
            if error is not None and self._new(error[1])
        ]


@contextmanager
def telling_errors(run: str, on_progress: OnProgress) -> Iterator[None]:
    """Tell the errors that processes of a run log while the block runs, from a thread."""
    errors, over = LoggedErrors(run), threading.Event()

    def tell() -> None:
        while not over.wait(PERIOD_S):
            _tell(errors, on_progress)
            copy_last_lines(run)

    thread = threading.Thread(target=tell, name="errors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * PERIOD_S)
        copy_last_lines(run)
        _tell(errors, on_progress)


def _tell(errors: LoggedErrors, on_progress: OnProgress) -> None:
    for line in errors.new():
        on_progress(Progress.note(line))
