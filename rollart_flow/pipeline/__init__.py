"""Pipelines: nodes, the functions that compose them, overrides, plans and pipeline files.

Importing this loads neither Ray nor torch nor transformers (a test checks it).
"""

from rollart_flow.pipeline.dag import Pipeline
from rollart_flow.pipeline.learning import buffer, evaluate, train
from rollart_flow.pipeline.loading import LoadedPipeline, load_pipeline, load_source
from rollart_flow.pipeline.plan import Plan
from rollart_flow.pipeline.producing import filter, reward, rollout, tasks

__all__ = [
    "LoadedPipeline",
    "Pipeline",
    "Plan",
    "buffer",
    "evaluate",
    "filter",
    "load_pipeline",
    "load_source",
    "reward",
    "rollout",
    "tasks",
    "train",
]
