"""Executors: where the processes and streams of a run live. Operators do not know which one it is.

`ray` (the default) runs on one node or on many; `inline` runs everything in this process. The
executor of a run is not one of its settings: a run that one of them began can be resumed by the
other.
"""

from rollart_flow.pipeline import Pipeline
from rollart_flow.registry import Registry
from rollart_flow.runner.executors.base import Executor

EXECUTORS: Registry[type[Executor]] = Registry(
    "executors",
    {
        "ray": "rollart_flow.runner.executors.ray:RayExecutor",
        "inline": "rollart_flow.runner.executors.inline:InlineExecutor",
    },
    setting="executor",
    kind=type,
)

DEFAULT = "ray"


def executor_for(pipeline: Pipeline, name: str = DEFAULT, address: str | None = None) -> Executor:
    """Return the executor of a name, to be entered for a run of a pipeline.

    Raises:
        SettingsError: there is no such executor, or it cannot run the pipeline.
    """
    executor = EXECUTORS.load(name)(address)
    executor.check(pipeline)
    return executor


__all__ = ["DEFAULT", "EXECUTORS", "Executor", "executor_for"]
