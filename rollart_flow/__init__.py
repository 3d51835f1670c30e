"""Agentic reinforcement learning as a dataflow over Apache Arrow.

    tasks -> rollout -> reward -> buffer -> train -> (new policy version, back to rollout)

A pipeline is composed from `tasks`, `rollout`, `filter`, `reward`, `buffer`, `train` and
`evaluate`; `rollart run FILE` runs it, and `open_run` opens what it left behind. Names are imported
when they are first used, so that `import rollart_flow` is quick and loads neither Ray nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollart_flow import errors
    from rollart_flow.models.policy import Policy
    from rollart_flow.pipeline import (
        Pipeline,
        buffer,
        evaluate,
        filter,
        reward,
        rollout,
        tasks,
        train,
    )
    from rollart_flow.store import open_run

__all__ = [
    "Pipeline",
    "Policy",
    "buffer",
    "errors",
    "evaluate",
    "filter",
    "open_run",
    "reward",
    "rollout",
    "tasks",
    "train",
]

_HOME = {"Policy": "rollart_flow.models.policy", "open_run": "rollart_flow.store"}
"""Where a name is defined, if not in `rollart_flow.pipeline`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return import_module("rollart_flow.errors")
    return getattr(import_module(_HOME.get(name, "rollart_flow.pipeline")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
