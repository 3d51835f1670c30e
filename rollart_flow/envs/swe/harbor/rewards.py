"""Rewards from the verifier of a task folder: `/logs/verifier/reward.json`, or `reward.txt`.

No file, or no finite number, is a failure of the verifier: the attempt is not judged at all, which
is something else than reward 0.
"""

import json
import math
from collections.abc import Mapping, Sequence

from rollart_flow.errors import EnvironmentFailedError, SandboxFileError
from rollart_flow.sandbox.box import Box
from rollart_flow.types.verdicts import Verdict, VerdictKind

LOGS = "/logs/verifier"
_MAX_BYTES = 1 << 20


def read_reward(box: Box) -> dict[str, float]:
    """Return the reward by key, of which "reward" is the score.

    Raises:
        EnvironmentFailedError: there is none, or it is not finite.
        SandboxError: the box has ended.
    """
    for name in ("reward.json", "reward.txt"):
        path = f"{LOGS}/{name}"
        if not box.exec(["test", "-e", path]).ok:
            continue
        try:
            text = box.read(path, max_bytes=_MAX_BYTES).decode()
            return parse_reward(text, is_json=name.endswith(".json"))
        except (SandboxFileError, ValueError) as error:
            raise EnvironmentFailedError(f"the verifier's {name} is no reward: {error}") from error
    raise EnvironmentFailedError(f"the verifier wrote no {LOGS}/reward.json or reward.txt")


def parse_reward(text: str, *, is_json: bool) -> dict[str, float]:
    """Return the reward by key of a file's text.

    Raises:
        ValueError: it is no finite number, nor a table of such with a key "reward".
    """
    value = json.loads(text) if is_json else float(text.strip())
    table = value if isinstance(value, dict) else {"reward": value}
    if "reward" not in table:
        raise ValueError("it has no key 'reward'")
    for key, number in table.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{key!r} is no number")
        if not math.isfinite(number):
            raise ValueError(f"{key!r} is {number}")
    return {key: float(number) for key, number in table.items()}


def reaches(reward: Mapping[str, float], least: float | Mapping[str, float] | None) -> bool:
    """Whether a step's reward is enough for the next step."""
    if least is None:
        return True
    wanted = least if isinstance(least, Mapping) else {"reward": least}
    return all(reward.get(key, -math.inf) >= number for key, number in wanted.items())


def combined(rewards: Sequence[float], steps: int, strategy: str) -> float:
    """Return the reward of a task of several steps; a step that was not reached counts 0."""
    if strategy == "final":
        return rewards[-1] if len(rewards) == steps else 0.0
    return sum(rewards) / steps


def verdicts_of(reward: Mapping[str, float], step: str) -> list[Verdict]:
    """Return the parts of a reward as verdicts, under the name of their step if it has one."""
    prefix = f"{step}/" if step else ""
    return [
        Verdict(key=f"{prefix}{key}", kind=VerdictKind.REWARD, value=value)
        for key, value in reward.items()
    ]
