"""An environment of SkyRL-Gym, in a process of the virtual environment that has its package.

    python -m venv ~/environments/skyrl && ~/environments/skyrl/bin/pip install skyrl-gym==0.4.0
    rollart run pipelines/skyrl_guess.py

`SKYRL_PYTHON` names the interpreter if it is elsewhere. The class is one of your own; without
`entry_point`, the id names one that SkyRL-Gym brings, such as "gsm8k". A guess is paid by the share
of its letters that are digits, and whole if it is the number, so that the reward rises within 20
steps. Two numbers are held out.
"""

import os
from pathlib import Path

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import SkyRLGym
from rollart_flow.trainers.optimizer import adamw

PYTHON = os.environ.get("SKYRL_PYTHON", "~/environments/skyrl/bin/python")
FOLDER = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rollart_flow" / "skyrl"
GUESS = """
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

class Guess(BaseTextEnv):
    def __init__(self, env_config, extras):
        super().__init__()
        self.number = extras["number"]

    def step(self, action):
        right = action.strip() == str(self.number)
        digits = sum(letter.isdigit() for letter in action) / max(len(action), 1)
        reward = 1.0 if right else digits / 2
        return BaseTextEnvStepOutput(
            observations=[], reward=reward, done=True, metadata={"right": right}
        )
"""

FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "rollart_guess.py").write_text(GUESS)
rows = [
    {"id": str(n), "prompt": [{"role": "user", "content": f"Say {n}."}], "number": n}
    for n in range(10)
]
guess = SkyRLGym(
    "guess", name="guess", python=PYTHON, folder=str(FOLDER), entry_point="rollart_guess:Guess",
    rows=tuple(rows[:8]), held_out_rows=tuple(rows[8:]), max_turns=1, success="metadata.right",
)  # fmt: skip
policy = Policy.tiny()
trajectories = rollout(tasks(guess, group_size=8), policy, max_tokens=3, max_concurrent=4)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=20, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("skyrl-guess", steps, evaluate(policy, guess, every=10, max_tokens=3))
