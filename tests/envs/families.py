"""What every family of environments has to hold: used by the tests of each."""

import json
from random import Random

from rollart_flow.envs import Domain
from rollart_flow.envs.numbered import HELD_OUT_FROM, NumberedDomain
from rollart_flow.types import Action, Split, Task

LONGEST = 16_000
"""Most characters of an observation."""


def play(domain: Domain, task: Task, actions: list[str | Action]) -> tuple[float, bool]:
    """Return the sum of rewards and whether the actions solved a task."""
    environment = domain.make()
    environment.reset(0, task.payload)
    total, solved = 0.0, False
    for action in actions:
        _, reward, terminated, truncated, info = environment.step(action)
        total, solved = total + reward, bool(info.get("success"))
        if terminated or truncated:
            break
    environment.close()
    return total, solved


def check_solutions(domain: Domain, task: Task) -> None:
    """Gold solves the task, doing nothing does not."""
    known = domain.solutions(task)
    assert play(domain, task, list(known["gold"]))[1], task
    assert not play(domain, task, list(known["noop"]))[1], task


def check_random_play(domain: Domain, task: Task, seed: int = 0, turns: int = 120) -> None:
    """Random moves and nonsense never raise, observations are bounded, and the seed decides all."""
    assert episode(domain, task, seed, turns) == episode(domain, task, seed, turns)


def episode(domain: Domain, task: Task, seed: int, turns: int) -> list[tuple[object, ...]]:
    """Return what an episode of moves shows, a tenth of which are nonsense."""
    environment, random = domain.make(), Random(seed)
    shown: list[tuple[object, ...]] = [(environment.reset(seed, task.payload)[0],)]
    for _ in range(turns):
        odd = random.random() < 0.1
        action = "\\boxed{}?\ud800 x" if odd else domain.example_action(task, random)
        observation, reward, terminated, truncated, info = environment.step(action)
        assert len(str(observation)) <= LONGEST
        shown.append((observation, reward, terminated, truncated, info["success"]))
        if terminated or truncated:
            break
    environment.close()
    return shown


def check_split(domain: NumberedDomain) -> None:
    """Training is seeded and endless, evaluation is finite, and nothing held out is trained on."""
    train = domain.tasks(Split.TRAIN, 1)
    first = [next(train) for _ in range(8)]
    again = domain.tasks(Split.TRAIN, 1)
    assert first == [next(again) for _ in range(8)]
    other = domain.tasks(Split.TRAIN, 2)
    assert first != [next(other) for _ in range(8)]
    measured, held_out = list(domain.tasks(Split.EVALUATION, 0)), list(domain.held_out(0))
    assert len(measured) == min(domain.evaluation_tasks, domain.train_tasks)
    assert len(held_out) == domain.held_out_tasks
    assert not {task.payload for task in held_out} & {task.payload for task in measured}
    assert all(task.domain == domain.name for task in (*first, *measured, *held_out))
    assert all(json.loads(task.payload) for task in held_out)
    assert domain.task(HELD_OUT_FROM) == held_out[0]
