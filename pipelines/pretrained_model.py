"""A pretrained model: any causal language model of Hugging Face, served by vLLM.

    MODEL=/path/to/model rollart run pipelines/pretrained_model.py

MODEL is a folder, or the id of a repository, which is downloaded once. By default it is SmolLM2
with 135 million parameters: a step takes half a minute on two cores. Another engine: `-s
policy.engine=transformers`. An adapter instead of all weights: `-s train.lora_rank=16`.
"""

import os

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.trainers.optimizer import adamw

model = os.environ.get("MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
policy = Policy.from_pretrained(model, engine="vllm", max_context=256)
numbers = Arithmetic(digits=1, instructions="Answer with a number only. ", near_reward=0.2)
trajectories = rollout(tasks(numbers, group_size=4), policy, max_tokens=12)
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
steps = train(batches, policy, grpo(), steps=3, optimizer=adamw(lr=1e-5))
pipeline = Pipeline("pretrained-model", steps)
