"""Pipelines: nodes, which are built by calling their classes, overrides, plans and pipeline files.

Importing this loads neither Ray nor torch nor transformers (a test checks it).
"""

from rollart_flow.pipeline.buffering import Buffer, Mix, buffer, mix
from rollart_flow.pipeline.dag import Pipeline
from rollart_flow.pipeline.filters import Filter, filter
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.learning import Evaluate, Train, evaluate, train
from rollart_flow.pipeline.loading import LoadedPipeline, load_pipeline, load_source
from rollart_flow.pipeline.node import Node
from rollart_flow.pipeline.plan import Plan
from rollart_flow.pipeline.producing import Rollout, Tasks, Trajectories, rollout, tasks
from rollart_flow.pipeline.scoring import Reward, reward
from rollart_flow.pipeline.stored import Stored, stored

__all__ = [
    "Buffer", "Evaluate", "Filter", "GeneratingNode", "LoadedPipeline", "Mix", "Node",
    "Pipeline", "Plan", "Reward", "Rollout", "Stored", "Tasks", "Train", "Trajectories", "buffer",
    "evaluate", "filter", "load_pipeline", "load_source", "mix", "reward", "rollout", "stored",
    "tasks", "train",
]  # fmt: skip
