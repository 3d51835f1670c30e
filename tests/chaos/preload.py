"""What drivers and scenarios import: loaded once by the process that forks them.

Its imports start no thread, which a forked process would lack. Nobody looks for garbage among what
they leave: each forked process would walk it, and so copy its memory.
"""

import gc

import pydantic  # noqa: F401
import tokenizers  # noqa: F401
import torch._dynamo  # noqa: F401

import rollart_flow.algorithms.recipes.grpo
import rollart_flow.cli.progress
import rollart_flow.cli.summary_view
import rollart_flow.engines.embedded
import rollart_flow.models.tokenizer
import rollart_flow.replay.step
import rollart_flow.runner.executors.inline
import rollart_flow.trainers.backends.embedded  # noqa: F401
from tests.chaos.matrix import load

load()
gc.freeze()
