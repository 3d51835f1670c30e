"""One question, one answer: judged by a reward function here, or left to the pipeline's reward."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

from rollart_flow.envs.base import Environment, Info
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.rewards.base import RewardFunction, infinite_number, typed_score
from rollart_flow.sandbox.boxes import Boxes
from rollart_flow.types import Observation, Outcome, Sampling, Split, Trajectory, Turn
from rollart_flow.types.messages import system, user
from rollart_flow.types.verdicts import Verdict, VerdictKind

VERSION = "questions/1"


@runtime_checkable
class BoxedCheck(Protocol):
    """A check that runs code of the answer in boxes, and has a verdict for each test."""

    def judge(self, trajectory: Trajectory, boxes: Boxes) -> list[Verdict]:
        """Return the verdicts on the last action."""

    def score(self, verdicts: list[Verdict]) -> tuple[float, dict[str, float]]:
        """Return the reward of verdicts, and its parts."""


def as_boxed(check: object) -> BoxedCheck | None:
    """Return a check as one that runs code in boxes, if it is one."""
    return check if isinstance(check, BoxedCheck) else None


def verifier_of(check: object) -> str:
    """Return the digest of a check: its settings, or the name of a function."""
    said = f"{getattr(check, '__module__', '')}.{getattr(check, '__qualname__', repr(check))}"
    return sha256(f"{VERSION}/{said}".encode()).hexdigest()


class PlainQuestion(Environment):
    """Shows the question of a row; the pipeline's reward judges the answer."""

    inline = True
    version = VERSION

    def __init__(self, template: str, instructions: str) -> None:
        self._template = template
        self._instructions = instructions
        self.payload = ""

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Show the question of a payload. Nothing is random, so no seed is used."""
        self.payload = task
        try:
            values: dict[str, Any] = json.loads(task)
            shown = self._template.format(**values)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise EnvironmentFailedError(
                f"questions: the payload fits no question: {error}"
            ) from error
        if not self._instructions:
            return shown, {}
        return [system(self._instructions), user(shown)], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """End the episode."""
        return "", 0.0, True, False, {}


class JudgedQuestion(PlainQuestion):
    """Shows the question of a row and judges the answer, in a process that can be killed."""

    inline = False

    def __init__(
        self, template: str, instructions: str, check: RewardFunction, domain: str
    ) -> None:
        super().__init__(template, instructions)
        self._check = check
        self._domain = domain

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Judge the answer. `info["success"]`: whether its reward is at least 1."""
        answered = _answered(self.payload, action, self._domain)
        if (boxed := as_boxed(self._check)) is not None:
            verdicts = boxed.judge(answered, self.boxes)
            score = typed_score(boxed.score(verdicts))
        else:
            score = typed_score(self._check(answered))
            parts = {"reward": score[0], **(score[1] or {})}
            verdicts = [
                Verdict(key=name, kind=VerdictKind.REWARD, value=value)
                for name, value in parts.items()
            ]
        if (infinite := infinite_number(score)) is not None:
            raise EnvironmentFailedError(f"questions: the check {infinite}")
        info = {
            "success": score[0] >= 1.0,
            "verdicts": [verdict.as_json() for verdict in verdicts],
            "verifier": verifier_of(self._check),
        }
        return "", score[0], True, False, info


def _answered(task: str, action: str, domain: str) -> Trajectory:
    """Return an attempt of one turn, as reward functions read it."""
    now = datetime.now(UTC)
    turn = Turn(0, 0, "", action, 0.0, 0.0, 0.0, "", "", "stop")
    return Trajectory(
        trajectory_id="", episode_id="", group_id="", task_id=domain, domain=domain, attempt=0,
        outcome=Outcome.COMPLETED, task=task, sampling=Sampling(), split=Split.TRAIN, env_seed=0,
        env_version=VERSION, created_at=now, finished_at=now, reset_s=0.0, turns=(turn,),
    )  # fmt: skip
