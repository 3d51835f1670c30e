"""`Pipeline`: the graph of a pipeline file, with what follows from its settings."""

from collections.abc import Mapping
from typing import Any

from rollart_flow.pipeline.described import describe_pipeline
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.overrides import override
from rollart_flow.pipeline.plan import Plan, make_plan


class Pipeline(Graph):
    """A named pipeline: its output nodes and all nodes upstream of them.

    A pipeline file has one at module level, under the name `pipeline`.
    """

    def override(self, changes: Mapping[str, str]) -> "Pipeline":
        """The pipeline with settings replaced, e.g. {"alpha": "2", "train.steps": "20"}.

        Raises:
            SettingsError: a key that is unknown or not unique, or a value of a wrong type.
            PipelineError: the changed settings do not fit together.
        """
        return override(self, changes)

    def settings(self) -> dict[str, Any]:
        """Every setting as JSON-serializable values, as recorded with the run."""
        return describe_pipeline(self)

    def plan(self) -> Plan:
        """The stages of the pipeline and the resources they request, without running them."""
        return make_plan(self)
