"""Run the benchmarks: `make bench`, or `python -m tests.benchmarks.run store engine` for some.

Each module `bench_*.py` here has `run() -> list[Record]`. What they report is printed as a table
and written to `bench.json` in the current folder. Exit code 1 where a goal is missed.
"""

import importlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.records import Record

RESULT = Path("bench.json")


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, or all; the exit code."""
    known = sorted(p.stem.removeprefix("bench_") for p in Path(__file__).parent.glob("bench_*.py"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no benchmark {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    records: list[Record] = []
    for name in names or known:
        started = time.monotonic()
        print(f"{name} ...", file=sys.stderr, flush=True)
        records += importlib.import_module(f"tests.benchmarks.bench_{name}").run()
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    RESULT.write_text(json.dumps(records, indent=1) + "\n")
    Console().print(_table(records))
    return 1 if any(record["holds"] is False for record in records) else 0


def _table(records: list[Record]) -> Table:
    table = Table("figure", "value", "unit", "goal", "", "beside it")
    for record in records:
        mark = {True: "holds", False: "MISSED", None: ""}[record["holds"]]
        value = f"{record['value']:g}"
        table.add_row(
            record["name"], value, record["unit"], record["goal"] or "", mark, record["peer"] or ""
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
