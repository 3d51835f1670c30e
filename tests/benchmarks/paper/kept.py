"""Results of simulations in a folder, so that a long `make paper` can be stopped and go on later.

The invariant: a result is found again only by a case that is equal in every value, and by the same
source text of what simulates; whatever cannot be described without an address is refused.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import TypeAdapter

import rollart_flow
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper import details, figures
from tests.benchmarks.paper.figures import Figure, Finished, finish

KEPT = Path("build/paper")
"""The folder, within the current one."""

_SIMULATING = ("control", "simulation", "types")
"""Packages of rollart_flow that decide about the result of a case."""


def simulate_cases(
    cases: Sequence[Case],
    *,
    jobs: int,
    folder: Path | None = None,
    on_case: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Case, Finished]:
    """Simulate cases, each once, in `jobs` processes; what a folder has is read from it.

    Args:
        folder: where each result is written as soon as there is one; None keeps nothing.
        on_case: called with (number of finished cases, number of cases).
    """
    wanted = list(dict.fromkeys(cases))
    done: dict[Case, Finished] = {}
    if folder is not None:
        found = ((case, _read(folder, case)) for case in wanted)
        done |= {case: result for case, result in found if result is not None}

    def finished(case: Case, result: Finished) -> None:
        done[case] = result
        if folder is not None:
            _write(folder, case, result)
        on_case(len(done), len(wanted))

    on_case(len(done), len(wanted))
    left = [case for case in wanted if case not in done]
    if jobs == 1 or len(left) < 2:
        for case in left:
            finished(case, finish(case))
        return done
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        running = {processes.submit(finish, case): case for case in left}
        try:
            for future in as_completed(running):
                finished(running[future], future.result())
        finally:
            processes.shutdown(wait=False, cancel_futures=True)
    return done


def run_figures(
    wanted: Sequence[Figure],
    *,
    jobs: int,
    folder: Path | None = None,
    on_case: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Case, Finished]:
    """Simulate all cases of the figures, as `simulate_cases` does."""
    cases = [case for figure in wanted for case in figure.cases]
    return simulate_cases(cases, jobs=jobs, folder=folder, on_case=on_case)


def key_of(case: Case) -> str:
    """Return the name of a case's result, equal in every process for equal values and sources."""
    text = json.dumps([_sources(), described(case)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def described(value: Any) -> Any:
    """Return a value as JSON, by its fields and its type.

    Raises:
        TypeError: nothing but an address would stand for it.
    """
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(map(str, map(described, value)))
    if is_dataclass(value):
        parts = {part.name: described(getattr(value, part.name)) for part in fields(value)}
        return [type(value).__qualname__, parts]
    if isinstance(value, FunctionType) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(f"no name for {value!r} that another process could know")


@cache
def _sources() -> str:
    """Return a digest of the source texts that decide about results."""
    package = Path(rollart_flow.__file__).parent
    files = [file for name in _SIMULATING for file in sorted((package / name).rglob("*.py"))]
    files += [Path(str(module.__file__)) for module in (details, figures)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


_RESULT = TypeAdapter(Finished)


def _read(folder: Path, case: Case) -> Finished | None:
    try:
        text = (folder / f"{key_of(case)}.json").read_text()
    except FileNotFoundError:
        return None
    return _RESULT.validate_python(json.loads(text)["result"])


def _write(folder: Path, case: Case, result: Finished) -> None:
    """Write a result whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key_of(case)}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"case": case.title, "result": _RESULT.dump_python(result)}))
    part.replace(path)
