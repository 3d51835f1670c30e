"""`rollart demo`: the pipeline of the demo, wherever the library is installed."""

from pathlib import Path

from rollart_flow.cli.arguments import AsJson, Changes, Executor, NewName, Store
from rollart_flow.cli.training import run

_NAME = "two_domains.py"
_IN_WHEEL = Path(__file__).parent / "project" / f"{_NAME}.txt"
_IN_SOURCES = Path(__file__).parents[2] / "pipelines" / _NAME


def demo(
    store: Store = None,
    name: NewName = None,
    changes: Changes = None,
    executor: Executor = "ray",
    as_json: AsJson = False,
) -> None:
    """Train a small agent on two task domains, about a minute on two cores."""
    run(str(demo_file()), store, name, changes, executor=executor, as_json=as_json)


def demo_file() -> Path:
    """Path of the demo's pipeline."""
    return _IN_WHEEL if _IN_WHEEL.exists() else _IN_SOURCES
