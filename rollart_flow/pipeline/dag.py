"""`Pipeline`: the graph of a pipeline file, with what follows from its settings."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollart_flow.pipeline.described import describe_pipeline
from rollart_flow.pipeline.graph import Graph
from rollart_flow.pipeline.overrides import override, with_policy
from rollart_flow.pipeline.plan import Plan, make_plan
from rollart_flow.registry import load_attribute

_INTERACTIVE = "# built in an interactive session, which has no file of the pipeline\n"


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

    def located(self) -> "Pipeline":
        """The pipeline with the folder of its policy's model, checked by what that model is.

        Raises:
            SettingsError: there is no such model, or it cannot be downloaded.
            PipelineError: the pipeline cannot run with this model.
        """
        policy = self.policy.located()
        return self if policy == self.policy else with_policy(self, policy)

    def settings(self) -> dict[str, Any]:
        """Every setting as JSON-serializable values, as recorded with the run."""
        return describe_pipeline(self)

    def plan(self) -> Plan:
        """The stages of the pipeline and the resources they request, without running them."""
        return make_plan(self)

    def run(self, *, executor: str = "ray", store: str | None = None, **options: Any) -> Any:
        """Run the pipeline to its end, as `rollart run` does with the file that calls this method.

        The file is stored with the run. Put the call under `if __name__ == "__main__":`, since
        `resume` loads the file again; a run of an interactive session cannot be resumed.

        Args:
            executor: "ray", or "inline" for this process, where `breakpoint()` stops in
                environments and rewards.
            store: address of the run store; $ROLLART_STORE or ./runs by default.
            options: further arguments of `rollart_flow.runner.run`.

        Returns:
            Name, address and status of the run, a `rollart_flow.runner.RunResult`.

        Raises:
            SettingsError: there is no model of the policy.
            RunFailedError: the run failed.
            StoreError: the store cannot be written.
        """
        path = sys._getframe(1).f_globals.get("__file__")
        text = _INTERACTIVE if path is None else Path(path).read_text(encoding="utf-8")
        loaded = load_attribute("rollart_flow.pipeline.loading:LoadedPipeline")
        run = load_attribute("rollart_flow.runner:run")
        given = loaded(self.located(), text, str(path or "interactive session"))
        return run(given, executor=executor, store=store, **options)
