"""The card of an exported data set: where its rows come from, for those who load them.

The card has no settings and no overrides of the run, so that nothing secret can stand in it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rollart_flow.exporting.card import table_of
from rollart_flow.store import RunInfo

_HEAD = """---
pretty_name: {name}
tags: [reinforcement-learning, rollart_flow]
size_categories: [{size}]
configs:
- config_name: default
  data_files:
  - split: train
    path: {files}
---
"""
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
_LICENCE = "None is set. Add `license:` to the head of this file."


def data_card(
    info: RunInfo,
    *,
    what: str,
    rows: int,
    files: str,
    schema: pa.Schema,
    provenance: Mapping[str, object],
    counts: Iterable[Sequence[object]],
) -> str:
    """Return the text of README.md for a data set.

    Args:
        info: information of the run.
        what: "conversations" or "tokens".
        rows: number of rows.
        files: pattern of the files with the rows.
        schema: their columns.
        provenance: the filter, the command and what else says how the data set was made.
        counts: rows of (domain, outcome, rows, mean reward).
    """
    title = f"{info.name}: {what}"
    size = next((word for most, word in _SIZES if rows < most), "n>1M")
    head = _HEAD.format(name=json.dumps(title), size=size, files=json.dumps(files))
    about = {
        "run": info.name,
        "pipeline": info.pipeline,
        "made": info.created_at.isoformat(timespec="seconds"),
        "status at export": info.status,
        "rows": rows,
        **provenance,
    }
    sections = {
        "Provenance": table_of(("what", "value"), about.items()),
        "Counts": table_of(("domain", "outcome", "rows", "mean reward"), counts),
        "Columns": table_of(("column", "type"), ((f.name, f.type) for f in schema)),
        "Licence": _LICENCE,
    }
    body = "".join(f"\n## {name}\n\n{text}\n" for name, text in sections.items())
    return f"{head}\n# {title}\n\nTrajectories of a run of rollart_flow.\n{body}"
