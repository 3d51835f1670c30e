"""Problems of mathematics with a Python tool: each program runs in the attempt's box.

    rollart run pipelines/math_python.py

Watch the columns `tool_calls` and `tool_errors` of `trajectories`. A tiny policy seldom writes a
call, and is hardly ever right: give a model that was trained to call tools.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import MathWithPython

policy = Policy.tiny(max_context=512)
problems = MathWithPython("story", calls=3, max_turns=4, call_cost=0.05)
trajectories = rollout(tasks(problems, group_size=8), policy, max_tokens=24, step_timeout_s=20)
batches = buffer(reward(trajectories), batch_size=32, alpha=1)
pipeline = Pipeline("math-python", train(batches, policy, grpo(), steps=20))
