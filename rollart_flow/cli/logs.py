"""`rollart logs RUN`: what the processes of a run printed and logged, with tracebacks."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, escape_controls, grid, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.store.logs import LogFiles

_PERIOD_S = 0.5
"""Time between two looks at the files with `--follow` [s]."""


def logs(
    run: RunName,
    worker: Annotated[
        str | None, typer.Option(help="Show the log of one process, such as rollout or driver.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the run ends.")
    ] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List the processes of a run that left a log; with --worker or --follow show the logs."""
    from rollart_flow.store import resolve
    from rollart_flow.store.logs import logs_folder, read_logs

    uri = resolve(run, store)
    found = read_logs(uri)
    elsewhere = _elsewhere(uri)
    if worker is not None:
        found = _of(found, worker, run, elsewhere)
    if elsewhere and not as_json:
        print(f"run {run}: {elsewhere}", file=sys.stderr)
    if follow:
        _follow(uri, worker)
    elif as_json:
        print_json([_row(log) for log in found])
    elif worker is not None:
        for log in found:
            sys.stdout.write(_headed(log) + escape_controls(log.text()))
    elif not found:
        console().print(f"run {run} has no logs in {logs_folder(uri)}")
    else:
        rows = [[str(value) for value in _row(log).values()] for log in found]
        console().print(grid(("process", "pid", "bytes", "last line at"), rows, right="pid bytes"))
        console().print(f"rollart logs {run} --worker {found[-1].process}", style="dim")


def _elsewhere(uri: str) -> str:
    """Where the other logs of a run are that is not on a file system; else an empty text."""
    from rollart_flow.store import files
    from rollart_flow.store.logs import logs_folder

    if not files.is_remote(uri):
        return ""
    return (
        "its tables are in an object store, but its logs stay on the machines of its processes; "
        f"`rollart logs` there shows the others, here it reads {logs_folder(uri)}"
    )


def _of(found: "Sequence[LogFiles]", worker: str, run: str, elsewhere: str) -> "list[LogFiles]":
    """The logs of the processes of a name, or of the one with this pid."""
    wanted = [log for log in found if worker in (log.process, f"{log.process}-{log.pid}")]
    if not wanted:
        names = ", ".join(dict.fromkeys(log.process for log in found)) or "none"
        said = f"run {run} has no log of {worker!r}; it has logs of {names}"
        raise SettingsError(f"{said}; {elsewhere}" if elsewhere else said)
    return wanted


def _row(log: "LogFiles") -> dict[str, object]:
    at = datetime.fromtimestamp(log.changed_at, UTC).isoformat(timespec="seconds")
    return {"process": log.process, "pid": log.pid, "bytes": log.size_bytes, "changed_at": at}


def _headed(log: "LogFiles") -> str:
    return f"==> {log.process}, process {log.pid} <==\n"


def _follow(uri: str, worker: str | None) -> None:
    """Print lines as they are written, those of several processes with their names."""
    from rollart_flow.store import RunStatus, read_info

    places: dict[Path, int] = {}
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
        ended = False
        while True:
            for line in _new_lines(uri, worker, places):
                sys.stdout.write(escape_controls(line))
            sys.stdout.flush()
            if ended:
                return
            ended = read_info(uri).status is not RunStatus.RUNNING
            if not ended:
                time.sleep(_PERIOD_S)


def _new_lines(uri: str, worker: str | None, places: dict[Path, int]) -> Iterator[str]:
    """Whole lines that were added to the current file of each process."""
    from rollart_flow.store.logs import read_logs

    for log in read_logs(uri):
        if worker not in (None, log.process, f"{log.process}-{log.pid}"):
            continue
        path = log.paths[-1]
        with suppress(OSError), open(path, "rb") as stream:
            at = places.get(path, 0)
            stream.seek(at if path.stat().st_size >= at else 0)
            data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            places[path] = stream.tell() - len(data) + len(whole)
            head = "" if worker is not None else f"{log.process}: "
            yield from (f"{head}{line}\n" for line in whole.decode(errors="replace").splitlines())
