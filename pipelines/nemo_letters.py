"""An environment at a resources server of NeMo Gym: its `mcqa`, questions of one letter.

    NEMO_GYM_URL=http://127.0.0.1:8000 rollart run pipelines/nemo_letters.py

It needs the extra `remote`, and the server `mcqa` of the package nemo-gym (Python 3.12), which runs
by itself. A row is a line of its data sets: the messages, the options, and a pattern for the
letter of the answer. The policy learns to name a letter, and then which; two letters are held out.
"""

import os
from typing import Any

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import NemoGym
from rollart_flow.trainers.optimizer import adamw

URL = os.environ.get("NEMO_GYM_URL", "http://127.0.0.1:8000")
LETTERS = "ABCDEF"


def row(letter: str) -> dict[str, Any]:
    """A question whose answer is a letter."""
    return {
        "uuid": letter,
        "responses_create_params": {"input": [{"role": "user", "content": f"Say {letter}."}]},
        "options": [{each: f"the letter {each}"} for each in LETTERS],
        "expected_answer": letter,
        "template_metadata": {"output_regex": f"([{LETTERS}])"},
    }


rows = tuple(map(row, LETTERS))
letters = NemoGym(URL, name="letters", rows=rows[:4], held_out_rows=rows[4:], max_turns=1)
policy = Policy.tiny()
trajectories = rollout(tasks(letters, group_size=8), policy, max_tokens=2, max_concurrent=16)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=20, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("nemo-letters", steps, evaluate(policy, letters, every=10, max_tokens=2))
