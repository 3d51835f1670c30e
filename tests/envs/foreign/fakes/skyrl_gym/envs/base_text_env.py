"""What an environment of one's own inherits, as `skyrl_gym.envs.base_text_env` has it."""

from typing import Any, TypedDict


class BaseTextEnvStepOutput(TypedDict):
    """The answer to an action."""

    observations: list[Any]
    reward: float
    done: bool
    metadata: dict[str, Any]


class BaseTextEnv:
    """An environment that begins with the row's prompt."""

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def get_metrics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing is held."""
