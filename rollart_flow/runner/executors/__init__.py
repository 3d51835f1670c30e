"""Executors: where the processes and streams of a run live. Operators do not know which one it is.

`ray` (the default) runs on one node or on many; `inline` runs everything in this process. The
executor of a run is not one of its settings: a run that one of them began can be resumed by the
other.
"""

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

__all__ = ["DEFAULT", "EXECUTORS", "Executor"]
