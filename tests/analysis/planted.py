"""A stored run with clean trajectories, and with one of each kind that a red team looks for."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from rollart_flow.rows import trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import Outcome, Split, Trajectory
from tests.builders import batch_row, numbered, turn
from tests.runs import new_writer

STEP = 3
PLANTED = {
    "short": {"short"},
    "long": {"long"},
    "cut": {"cut"},
    "babble": {"repeats_words"},
    "loop": {"repeats_actions"},
    "unfinished": {"truncated"},
    "shaped": {"parts_disagree"},
    **{f"copied-{number}": {"same_everywhere"} for number in range(5)},
    "leap-v2-0": {"reward_jump"},
    "leap-v2-1": {"reward_jump"},
    "two-things": {"short", "truncated"},
    "seen": {"suspicions"},
}
"""Which rules must fire on what; on everything else none."""

_NUMBERS = count()
_USUAL_TOKENS = 40


def planted_run(folder: Path) -> Run:
    """Write the run into a folder that serves as store, and open it."""
    writer = new_writer(folder, "planted")
    writer.commit(
        "trajectories", trajectories_table([*_clean(), *_well_behaved(), *_planted(), *_versions()])
    )
    evaluations = [
        ("leap", 0, 0.5), ("leap", 2, 0.25), ("climb", 0, 0.25), ("climb", 2, 0.5),
    ]  # fmt: skip
    writer.commit("evaluations", to_table("evaluations", [_evaluated(*e) for e in evaluations]))
    writer.commit("batches", to_table("batches", [batch_row(STEP, 0, "short", "short")]))
    writer.close(RunStatus.FINISHED)
    return open_run(str(folder / "planted"))


def _made(
    name: str,
    group: str,
    reward: float,
    *actions: str,
    tokens: int = _USUAL_TOKENS,
    finish: str = "stop",
) -> Trajectory:
    """A trajectory of the domain math; other words in each where no actions are given."""
    number = next(_NUMBERS)
    words = actions or (" ".join(f"word{number}-{index}" for index in range(20)),)
    turns = tuple(turn(text, end=2, finish_reason=finish) for text in words)
    return replace(
        numbered(0, tokens=2 * tokens),
        trajectory_id=name,
        group_id=group,
        task_id=f"task-{group}",
        domain="math",
        turns=turns,
        reward=reward,
        reward_parts={"outcome": reward, "process": 0.0},
    )


def _clean() -> Iterator[Trajectory]:
    for group in range(10):
        for attempt in range(4):
            yield _made(f"clean-{group}-{attempt}", f"clean-{group}", float(attempt % 2))
    unscored = _made("unscored", "clean-0", 1.0, "a", tokens=1)
    yield replace(unscored, outcome=Outcome.FAILED, reward=None, reward_parts=None, scored_at=None)
    evaluated = _made("evaluated", "clean-0", 1.0, "a", tokens=1)
    yield replace(evaluated, split=Split.EVALUATION)


def _well_behaved() -> Iterator[Trajectory]:
    """A composed reward whose process parts pay right and wrong attempts alike."""
    for attempt in range(4):
        made = _made(f"polite-{attempt}", "polite", attempt % 2 + 0.25)
        parts = {"outcome": float(attempt % 2), "process": 0.25}
        yield replace(made, domain="manners", reward_parts=parts)


def _planted() -> Iterator[Trajectory]:
    yield from _beside_wrong(_made("short", "short", 1.0, "42", tokens=5))
    yield from _beside_wrong(_made("long", "long", 1.0, tokens=200))
    yield from _beside_wrong(_made("cut", "cut", 1.0, finish="length"))
    yield from _beside_wrong(_made("babble", "babble", 1.0, "so it goes on and " * 10))
    yield from _beside_wrong(_made("loop", "loop", 1.0, *["wait"] * 8))
    unfinished = replace(_made("unfinished", "unfinished", 1.0), outcome=Outcome.TRUNCATED)
    yield from _beside_wrong(unfinished)
    shaped = _made("shaped", "shaped", 0.25)
    yield from _beside_wrong(replace(shaped, reward_parts={"outcome": 0.0, "process": 0.25}))
    for number in range(5):
        text = (
            "The answer is\nclearly forty-two" if number % 2 else "The answer is clearly forty-two"
        )
        yield from _beside_wrong(_made(f"copied-{number}", f"copied-{number}", 1.0, text))
    seen = ("touched_tests: test_a.py", "network: curl")
    caught = replace(_made("caught", "seen", 0.0), suspicions=seen[1:])
    yield from (replace(_made("seen", "seen", 1.0), suspicions=seen), caught)
    both = replace(_made("two-things", "two-things", 1.0, "7", tokens=1), outcome=Outcome.TRUNCATED)
    yield from _beside_wrong(both)


def _beside_wrong(planted: Trajectory) -> Iterator[Trajectory]:
    yield planted
    for attempt in range(3):
        yield _made(f"{planted.trajectory_id}-wrong-{attempt}", planted.group_id, 0.0)


def _versions() -> Iterator[Trajectory]:
    """Two domains whose reward leaps at version 2; only the evaluation tells them apart."""
    for domain in ("leap", "climb"):
        for version, reward in enumerate((0.0, 0.0, 1.0)):
            for attempt in range(2):
                name = f"{domain}-v{version}-{attempt}"
                made = _made(name, f"{domain}-{version}", reward)
                yield replace(
                    made, domain=domain, policy_version_start=version, policy_version_end=version
                )


def _evaluated(domain: str, version: int, value: float) -> dict[str, object]:
    return {
        "step": version, "policy_version": version, "domain": domain, "metric": "success",
        "value": value, "n": 32,
    }  # fmt: skip
