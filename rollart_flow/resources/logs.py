"""The output of a run's processes, kept in the run's folder (`store.logs`).

A process of Ray writes to files of Ray on its node. `keep_log` starts a thread that copies new
lines of these files into the run's log, and adds the records of this library's loggers, with
tracebacks. The driver keeps its records, what it prints during the run, and what processes that it
starts itself print. Every line passes `secret.masked_in_log` before it is written. The lines that a
process wrote last before it was killed are copied by its run's driver, if that is on the same node.
"""

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rollart_flow.isolation.process import children_write_to, keep_output_of_children
from rollart_flow.secret import masked_in_log
from rollart_flow.store.files import is_remote
from rollart_flow.store.logs import BoundedLog, append_to_log, begin_logs, logs_folder
from rollart_flow.store.owner import Owner

PERIOD_S = 1.0
"""Time between two copies of what was printed."""
_RAY_MARKS = (":job_id:", ":actor_name:", ":task_name:", "\x1b[36m:")
"""Beginnings of lines that Ray writes into its files for itself."""
_LONGEST = 1 << 20
"""Bytes that are read at once, and the longest line that is kept whole [bytes]."""
_LOGGER = "rollart_flow"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Printed:
    """The output of a process in a file, read line by line as it grows."""

    def __init__(self, path: str, at: int = 0, *, own: bool = False) -> None:
        self.path = path
        self.at = at
        """Bytes that were read."""
        self.own = own
        """Whether nobody else reads the file, so that what was read can be removed."""

    def empty(self) -> None:
        """Remove what was read, so that the file does not grow with the length of a run."""
        with suppress(OSError):
            os.truncate(self.path, 0)
            self.at = 0

    def new_lines(self, *, ended: bool = False) -> str:
        """Return the lines that were added; an unfinished one too if the process has ended."""
        found = []
        with suppress(OSError), open(self.path, "rb") as stream:
            stream.seek(self.at)
            while data := stream.read(_LONGEST):
                whole = data if ended or len(data) == _LONGEST else data[: data.rfind(b"\n") + 1]
                if not whole:
                    break
                self.at += len(whole)
                found.append(whole.decode(errors="replace"))
        lines = "".join(found).splitlines()
        return "".join(f"{line}\n" for line in lines if not line.startswith(_RAY_MARKS))


class ProcessLog(logging.Handler):
    """The log of this process.

    Args:
        run: address of the run.
        process: name of the process in the run.
        printed: files that the process prints into.
    """

    def __init__(self, run: str, process: str, printed: Sequence[Printed]) -> None:
        super().__init__(logging.INFO)
        self._run = run
        self._process = process
        self._printed = printed
        self._log = BoundedLog(run, process, os.getpid())
        self._tail = logs_folder(run) / f".{self._log.process}.tail"
        self._copied: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="log", daemon=True)
        self.write(f"{_now()} INFO {process} runs as process {os.getpid()}\n")
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        self._thread.start()

    def keeps(self, run: str, process: str) -> bool:
        """Whether this is the log of a process of a run."""
        return (self._run, self._process) == (run, process)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record with its traceback, called by `logging`."""
        try:
            self.write(f"{_now()} {record.levelname} {self.format(record)}\n")
        except Exception:  # noqa: BLE001  as `logging` itself: a record must not end its caller
            self.handleError(record)

    def write(self, text: str) -> None:
        """Append whole lines, without secrets."""
        self.acquire()
        try:
            self._log.append(masked_in_log(text))
        finally:
            self.release()

    def end(self) -> None:
        """Copy the last lines, and log nothing more."""
        logger = logging.getLogger(_LOGGER)
        logger.removeHandler(self)
        logger.setLevel(self._level)
        self._over.set()
        self._thread.join(PERIOD_S)
        self._copy_new(ended=True)
        self._log.close()
        with suppress(OSError):
            self._tail.unlink(missing_ok=True)

    def _copy(self) -> None:
        while not self._over.wait(PERIOD_S):
            self._copy_new()

    def _copy_new(self, *, ended: bool = False) -> None:
        for printed in self._printed:
            if lines := printed.new_lines(ended=ended):
                self.write(lines)
            if printed.own and printed.at > _LONGEST:
                printed.empty()
        copied = [printed.at for printed in self._printed]
        if copied != self._copied and not ended:
            self._copied = copied
            self._remember()

    def _remember(self) -> None:
        """Note how far was copied, for the driver, if this process is killed."""
        said = {
            "process": self._process,
            "pid": os.getpid(),
            "owner": asdict(Owner.this_process()),
            "printed": {printed.path: printed.at for printed in self._printed},
        }
        written = self._tail.with_suffix(".new")
        with suppress(OSError):
            written.write_text(json.dumps(said))
            written.replace(self._tail)


def copy_last_lines(run: str, *, over: bool = False) -> None:
    """Copy what processes of this machine printed last before they were killed.

    Args:
        run: address of the run.
        over: whether the run is over, so that processes that still end are not waited for.
    """
    for tail in sorted(logs_folder(run).glob(".*.tail")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(tail.read_text())
            if (gone := Owner(**said["owner"]).gone) or over:
                tail.unlink()
            if gone:
                printed = (Printed(*place) for place in said["printed"].items())
                lines = "".join(each.new_lines(ended=True) for each in printed)
                append_to_log(run, said["process"], said["pid"], masked_in_log(lines))


_kept: list[ProcessLog] = []
"""The log of this process, if it has one; the driver of several runs has one for each."""


def keep_log(run: str, process: str) -> None:
    """Keep what this process of Ray prints and logs until it ends; only the first call counts."""
    if _kept:
        return
    if is_remote(run):
        begin_logs(run)  # on each machine
    if logs_folder(run).is_dir():  # a run goes on without logs
        _kept.append(ProcessLog(run, process, _redirected()))
        keep_output_of_children(2)


def _redirected() -> list[Printed]:
    """The files that this process's standard output and standard error are."""
    found = {}
    for descriptor in (1, 2):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if Path(path).is_file():
            found[path] = Printed(path)
    return list(found.values())


class _Both:
    """A stream of the terminal whose text is also kept in the log."""

    def __init__(self, stream: TextIO, log: ProcessLog) -> None:
        self._stream = stream
        self._log = log
        self._line = ""

    def write(self, text: str) -> int:
        """Write to the terminal, and whole lines to the log."""
        *lines, self._line = (self._line + text).split("\n")
        if lines:
            self._log.write("".join(f"{line}\n" for line in lines))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def driver_log(run: str) -> Iterator[None]:
    """Keep what the driver logs, what it prints, and what processes that it starts print."""
    if any(log.keeps(run, "driver") for log in _kept):
        yield
        return
    begin_logs(run)
    copy_last_lines(run)
    with tempfile.NamedTemporaryFile(mode="a", prefix="rollart-printed-") as children:
        log = ProcessLog(run, "driver", [Printed(children.name, own=True)])
        _kept.append(log)
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Both(streams[0], log), _Both(streams[1], log)
        try:
            with children_write_to(children.fileno()):
                yield
        finally:
            sys.stdout, sys.stderr = streams
            _kept.remove(log)
            log.end()
            copy_last_lines(run, over=True)
