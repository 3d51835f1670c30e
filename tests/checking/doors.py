"""A domain of doors, whose tasks are each wrong in one way, and a pipeline over them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.types import Action, Split, Task
from rollart_flow.types.verdicts import Judgement, TaskDigests, Verdict

KINDS: Mapping[str, str] = {
    "also": "good", "good": "good", "leak": "leak", "open": "open", "stuck": "stuck",
    "wrong": "wrong",
}  # fmt: skip
"""What is wrong with each task, by its id."""
VERIFIER = "door/1"


class Door(Environment):
    """Opens for one word; the episode ends with the first word."""

    version = "door/1"
    _tries = count()

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self._kind = json.loads(task)["kind"]
        return f"a {self._kind} door", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._kind == "stuck":
            raise RuntimeError("the door is stuck")
        solved = action == "key" or (self._kind == "open" and not action)
        if self._kind == "flaky":
            solved = next(self._tries) % 2 == 0
        paid = self._kind == "leak" and action == "crowbar"
        suspicions = ["hidden_files: crowbar"] if action == "crowbar" else []
        info = {
            "success": solved,
            "verdicts": [Verdict(key="opens", passed=solved).as_json()],
            "verifier": VERIFIER,
            "diff": f"+{action}",
            "suspicions": suspicions,
        }
        return "", float(solved or paid), True, False, info


@dataclass(frozen=True)
class Doors(Domain):
    """The tasks of `KINDS`, or those of some kinds, in turn without end."""

    name: ClassVar[str] = "doors"
    environment: ClassVar[type[Environment]] = Door
    only: tuple[str, ...] = ()
    needs_admission: bool = True
    strict: bool = False
    """Whether the verifier of `judge` fails every change."""

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for number in count():
            names = self.only or tuple(KINDS)
            name = names[number % len(names)]
            yield Task(name, self.name, json.dumps({"kind": KINDS.get(name, name)}))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str | Action]]:
        gold = "nothing" if "wrong" in task.payload else "key"
        return {"gold": [gold], "cheat:crowbar": ["crowbar"]}

    def digests(self, task: Task) -> TaskDigests:
        return TaskDigests(task=task.task_id, verifier=VERIFIER)

    def judge(self, task: str, diff: str, boxes: Any) -> Judgement:
        if diff == "+break":
            raise RuntimeError("the verifier broke")
        solved = diff == "+key" and not self.strict
        found = (Verdict(key="opens", passed=solved),)
        return Judgement(reward=float(solved), success=solved, verdicts=found, verifier="door/2")


PIPELINE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from tests.checking.doors import Doors

policy = Policy.tiny()
trajectories = rollout(tasks(Doors({arguments}), group_size=2), policy, max_tokens=4)
steps = train(buffer(reward(trajectories), batch_size=4, alpha=1), policy, grpo(), steps=1)
pipeline = Pipeline("doors", steps)
"""


def write_pipeline(folder: Path, arguments: str = "") -> str:
    """Write the pipeline file, with arguments of its domain, and return its path."""
    path = folder / "doors.py"
    path.write_text(PIPELINE.format(arguments=arguments))
    return str(path)
