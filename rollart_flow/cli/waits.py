"""`rollart show RUN --waits`: what each process of a running run waits for.

The command reads the processes' own reports (`store.waits`), and so needs none of them to answer.
"""

from rollart_flow.cli.output import console, duration, grid, print_json
from rollart_flow.store import read_info
from rollart_flow.store.waits import ProcessState, ProcessWaits, read_waits

_REMARKS = {
    ProcessState.RUNNING: "",
    ProcessState.STOPPED: "stopped by a signal",
    ProcessState.SILENT: "has not reported",
    ProcessState.GONE: "gone",
}


def show_waits(run: str, as_json: bool) -> None:
    """Print the waits of a run's processes.

    Raises:
        RunNotFoundError: there is no run at the address.
    """
    info, reports = read_info(run), read_waits(run)
    if as_json:
        print_json(reports)
        return
    out = console()
    if not reports:
        out.print(f"run {info.name} is {info.status}; no process of it reports waits here")
        return
    rows = [row for report in reports for row in _rows(report)]
    out.print(grid(("process", "pid", "state", "waits for", "since"), rows, right="pid since"))


def _rows(report: ProcessWaits) -> list[list[str]]:
    """One row for each wait; the first one names the process."""
    age = "" if report.state is ProcessState.RUNNING else f", {duration(report.age_s)} ago"
    state = _REMARKS[report.state] + age
    head = [report.process, f"{report.pid} on {report.host}", state]
    waits = [[wait.name, duration(wait.seconds)] for wait in report.waits]
    first, *others = waits or [["the next call", ""]]
    return [[*head, *first], *(["", "", "", *each] for each in others)]
