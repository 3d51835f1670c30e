"""Agentic reinforcement learning as a dataflow over Apache Arrow.

    tasks -> rollout -> reward -> buffer -> train -> (new policy version, back to rollout)

A pipeline is composed from `tasks`, `rollout`, `filter`, `reward`, `buffer`, `train` and
`evaluate`, and from `stored` and `mix`, which learn from stored runs; `rollart run FILE` runs it,
`open_run` opens the stored run, and `export` writes a version of its policy for other tools. Names
are imported on first use, so that `import rollart_flow` is quick and loads neither Ray nor torch.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports
from rollart_flow.former_modules import find_former_modules

if TYPE_CHECKING:
    from rollart_flow import errors
    from rollart_flow.checking.rescore_run import rescore
    from rollart_flow.exporting.data import export_data
    from rollart_flow.exporting.model import export
    from rollart_flow.harness.harness import Harness
    from rollart_flow.importing import import_conversations
    from rollart_flow.models.policy import Policy
    from rollart_flow.pipeline import (
        Pipeline,
        buffer,
        evaluate,
        filter,
        mix,
        reward,
        rollout,
        stored,
        tasks,
        train,
    )
    from rollart_flow.secret import Secret
    from rollart_flow.store import open_run

__all__ = [
    "Harness", "Pipeline", "Policy", "Secret", "buffer", "errors", "evaluate", "export",
    "export_data", "filter", "import_conversations", "mix", "open_run", "rescore", "reward",
    "rollout", "stored", "tasks", "train",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "pipeline": "Pipeline buffer evaluate filter mix reward rollout stored tasks train",
        "models.policy": "Policy",
        "secret": "Secret",
        "": "errors",
        "store.run": "open_run",
        "exporting.data": "export_data",
        "exporting.model": "export",
        "checking.rescore_run": "rescore",
        "harness.harness": "Harness",
        "importing.import_run": "import_conversations",
    },
)

find_former_modules()
