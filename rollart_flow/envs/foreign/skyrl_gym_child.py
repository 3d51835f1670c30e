"""The side of `foreign.skyrl_gym` that an interpreter with skyrl-gym runs (`isolation.child`).

It needs the standard library and that package. Requests and answers are those of
`envs.child_handler`; the environment takes text, so that an episode has no tools.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


class SkyRLGymHandler:
    """Holds at most one environment, made with the row of the episode."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._environment: Any = None

    def __call__(self, request: Mapping[str, Any]) -> object:
        calls: dict[str, Callable[[Any], object]] = {
            "open": self._open,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }
        ((name, argument),) = request.items()
        return calls[name](argument)

    def _open(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        folder = os.path.expanduser(settings["folder"])
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
        import skyrl_gym

        env, entry_point = settings["env"], settings["entry_point"]
        registered = skyrl_gym.envs.registration.registry
        if entry_point and env not in registered:
            skyrl_gym.register(id=env, entry_point=entry_point)
        if env not in registered:
            known = ", ".join(sorted(registered))
            raise ValueError(f"SkyRL-Gym has no environment {env!r}; there are {known}")

    def _reset(self, argument: tuple[int, str]) -> object:
        seed, task = argument
        self._close(None)
        _seed(seed)
        row = json.loads(task)
        prompt = row.pop("prompt", None)
        if not isinstance(prompt, list):
            raise ValueError("the row has no column prompt with a list of messages")
        import skyrl_gym

        made = skyrl_gym.make(
            self._settings["env"], env_config=_config(self._settings["config"]), extras=row
        )
        self._environment = made
        messages, info = made.init(prompt)
        return _messages(messages), _jsonable(info or {}), None

    def _step(self, action: str) -> object:
        if self._environment is None:
            raise ValueError("step before reset; call reset first")
        answer = self._environment.step(action)
        metadata = dict(answer.get("metadata") or {})
        done = bool(answer["done"])
        info = {"metadata": metadata}
        if done:
            info["metrics"] = dict(self._environment.get_metrics())
        found: Any = {**metadata, **info}
        if self._settings["success"]:
            for part in self._settings["success"].split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
            if found is not None:
                info["success"] = found
        shown = "" if done else _messages(answer["observations"])
        return [shown, _plain(answer["reward"]), done, False, _jsonable(info)]

    def _close(self, _: None) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()


def _messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages that the policy is shown; none is the policy's own."""
    shown = []
    for message in messages or []:
        if message["role"] == "assistant":
            raise ValueError("the environment shows a message of the assistant")
        if not isinstance(message["content"], str):
            raise TypeError("a message is no text; images are not taken")
        role = message["role"] if message["role"] in ("system", "user") else "user"
        shown.append({"role": role, "content": message["content"]})
    if not shown:
        raise ValueError("the environment shows no message, though the episode goes on")
    return shown


def _config(values: dict[str, Any]) -> Any:
    """Return settings with attributes, as SkyRL passes them."""
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return values
    return OmegaConf.create(values)


def _seed(seed: int) -> None:
    """Seed the generators that an environment may use without asking for a seed."""
    import random

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _plain(value: Any) -> Any:
    """Return the Python value of a NumPy scalar."""
    item = getattr(value, "item", None)
    return item() if callable(item) else value


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(inner) for inner in value]
    value = _plain(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
