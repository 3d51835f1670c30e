"""The verdict on a diff: its files with the task's own tests, run in a fresh box."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.envs.swe.protected_files import with_task_files
from rollart_flow.envs.swe.runner_folder import runner_digest
from rollart_flow.envs.swe.swe_task import SweTask, TaskFiles, files_of_tests
from rollart_flow.envs.swe.unified_diff import apply_diff
from rollart_flow.envs.swe.verifier import TestRun, run_tests
from rollart_flow.errors import DiffError, EnvironmentFailedError
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.text import counted
from rollart_flow.types.suspicions import SuspicionKind
from rollart_flow.types.verdicts import Judgement, Verdict, VerdictKind

if TYPE_CHECKING:
    from rollart_flow.sandbox.boxes import Boxes

_SOURCES = (
    "copied_tests", "judging", "planted_tests", "protected_files", "pytest_settings",
    "unified_diff", "verifier",
)  # fmt: skip
_MOST_BROKEN = 200
"""Verdicts on tests that passed before and no longer do; the fractions count all of them."""


def judge_diff(
    task: SweTask,
    files: TaskFiles,
    diff: str,
    *,
    boxes: "Boxes",
    spec: SandboxSpec,
    timeout_s: float,
    packages: tuple[str, ...] = (),
) -> tuple[Judgement, tuple[str, ...]]:
    """Return the judgement on a diff, and suspicions about the tested code.

    Resolved, with reward 1, if every test of FAIL_TO_PASS and PASS_TO_PASS passes and the session
    ends by itself; reward 0 otherwise. A result that was forged counts for nothing.

    Args:
        task: the task.
        files: its trees.
        diff: change of `files.start`.
        boxes: source of the box.
        spec: the box of `verifier.box_spec`.
        timeout_s: limit of the session of tests [s]; tests that have not run by then have failed.
        packages: distributions beside pytest, as for `box_spec`.

    Raises:
        EnvironmentFailedError: the diff does not fit, or the test runner could not start.
        SandboxError: the box could not be started, or has ended.
    """
    try:
        changed = apply_diff(files.start, diff)
    except DiffError as error:
        raise EnvironmentFailedError(f"task {task.task_id!r}: {error}") from error
    tree = with_task_files(changed, files.complete)
    tests = files_of_tests(task)
    ran = run_tests(boxes, spec, tree, tests, timeout_s, copied=task.provable or task.fail_to_pass)
    passed = {name for name, result in ran.tests.items() if result.passed}
    if task.provable:
        passed -= _unproven(ran)
    if ran.forged:
        passed = set()
    wanted = {*task.fail_to_pass, *task.pass_to_pass}
    success = ran.ended and wanted <= passed
    verdicts = (
        *_verdicts("fail_to_pass", task.fail_to_pass, ran, passed),
        *_verdicts("pass_to_pass", task.pass_to_pass, ran, passed),
    )
    judgement = Judgement(
        reward=float(success),
        success=success,
        verdicts=verdicts,
        verifier=verifier_digest(packages),
    )
    return judgement, tuple(_suspicions(ran, wanted))


@cache
def verifier_digest(packages: tuple[str, ...] = ()) -> str:
    """Return the digest of everything that judges, beside the tests of a task."""
    digest = hashlib.sha256(runner_digest(packages).encode())
    for name in _SOURCES:
        found = find_spec(f"rollart_flow.envs.swe.{name}")
        assert found is not None
        assert found.origin is not None
        digest.update(Path(found.origin).read_bytes())
    return digest.hexdigest()


def _unproven(ran: TestRun) -> set[str]:
    """Return the tests that passed, but whose copies did not get to their ends."""
    return {test for test, ended in ran.copies.items() if not ended}


def _verdicts(
    group: str, tests: Mapping[str, float], ran: TestRun, passed: set[str]
) -> Iterator[Verdict]:
    """Yield the verdict on each test, of PASS_TO_PASS only on those that fail, and the fraction."""
    done = sum(name in passed for name in tests)
    fraction = done / len(tests) if tests else 1.0
    yield Verdict(key=group, kind=VerdictKind.REWARD, value=fraction)
    broken = 0
    for name in tests:
        if group == "pass_to_pass" and (name in passed or broken >= _MOST_BROKEN):
            continue
        broken += name not in passed
        yield _verdict(f"{group}/{name}", name, ran, name in passed)


def _verdict(key: str, name: str, ran: TestRun, passed: bool) -> Verdict:
    result = ran.tests.get(name)
    if result is None:
        path = name.partition("::")[0]
        late = "the tests took too long" if ran.timed_out else "it did not run"
        return Verdict(key=key, passed=False, message=ran.errors.get(path) or late)
    message = "the results are forged" if ran.forged else result.message or None
    if result.passed and not ran.forged:
        message = "its copy did not get to its end"
    return Verdict(
        key=key,
        passed=passed,
        seconds=result.seconds,
        message=None if passed or message is None else " ".join(message.split()),
    )


def _suspicions(ran: TestRun, wanted: set[str]) -> Iterator[str]:
    for detail in ran.forged:
        yield SuspicionKind.FORGED_RESULTS.said(detail)
    for test in sorted(_unproven(ran)) if not ran.forged else ():
        yield SuspicionKind.UNPROVEN.said(test)
    if ran.searched:
        yield SuspicionKind.SEARCHED_MEMORY.said(", ".join(ran.searched))
    if not ran.ended and not ran.timed_out:
        missing = len(wanted - ran.tests.keys())
        yield SuspicionKind.EARLY_EXIT.said(f"{counted(missing, 'test')} had not run")
