"""Environments with the interface of SkyRL-Gym's, which do what the action says."""

import os
import subprocess
import time
from typing import Any


class Guess:
    """Right is the row's number; "show" shows what the environment got."""

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        self.config, self.extras, self.turns = env_config, extras, 0

    def init(self, prompt: Any) -> Any:
        return prompt, {"pid": os.getpid()}

    def step(self, action: str) -> dict[str, Any]:
        self.turns += 1
        if action == "raise":
            raise ValueError("a\nb")
        if action == "exit":
            os._exit(3)
        if action == "hang":
            time.sleep(3600)
        if action == "fork":
            child = subprocess.Popen(["sleep", "600"])
            return self._answer([{"role": "user", "content": str(child.pid)}], 0.0, False)
        if action == "show":
            shown = f"{dict(self.config)} {sorted(self.extras)} {os.environ.get('GUESS')}"
            return self._answer([{"role": "user", "content": shown}], 0.0, False)
        if action == "nothing":
            return self._answer([], 0.0, False)
        if action == "image":
            return self._answer([{"role": "user", "content": [{"type": "image_url"}]}], 0, False)
        right = action == str(self.extras["number"])
        reward = float("nan") if action == "nan" else float(right)
        return self._answer([], reward, True) | {"metadata": {"acc": right}}

    def _answer(self, observations: Any, reward: float, done: bool) -> dict[str, Any]:
        return {"observations": observations, "reward": reward, "done": done, "metadata": {}}

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def close(self) -> None:
        """Nothing is held."""
