"""The checks of tasks that a new run uses, copied from those of its store."""

import pyarrow as pa

from rollart_flow.errors import SettingsError
from rollart_flow.operators.task_gate import COMMAND, admission_of
from rollart_flow.pipeline import Pipeline
from rollart_flow.store.admissions import AdmissionTable, uncommitted


def usable_admissions(pipeline: Pipeline, store: str | None, path: str) -> pa.Table | None:
    """Return the newest checks of tasks of a pipeline's domains, as rows for the run's table.

    None if there are none, or none are asked for.

    Raises:
        SettingsError: a domain needs admitted tasks, and has none; the message has the command.
        StoreError: the checks cannot be read.
    """
    if pipeline.offline:
        return None
    tasks = pipeline.tasks
    modes = {domain.name: admission_of(domain, tasks.admitted) for domain in tasks.domains}
    asked = [name for name, mode in modes.items() if mode != "any"]
    if not asked:
        return None
    table = AdmissionTable(store)
    rows = table.newest(asked)
    admitted = set(rows.filter("admitted")["domain"])
    for name, mode in modes.items():
        if mode == "required" and name not in admitted:
            raise SettingsError(
                f"no task of domain {name!r} is admitted in {table.uri}; run `{COMMAND} {path}` "
                "first, or set tasks.admitted=any"
            )
    return uncommitted(rows) if rows.height else None
