"""The rule `code_tests`: the answer's code against the tests of the task, in a box."""

import json
import re
from dataclasses import KW_ONLY, dataclass, field

from rollart_flow.errors import RewardFailedError
from rollart_flow.rewards.base import Score
from rollart_flow.rewards.code.cases import ProgramTest, Tests, read_tests
from rollart_flow.rewards.code.judging import (
    TestLimits,
    UnitContext,
    share_passed,
    verdicts_of,
)
from rollart_flow.rewards.text import answer_of, check_inside, from_task
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.boxes import Boxes, LocalBoxes
from rollart_flow.types import Trajectory
from rollart_flow.types.verdicts import Verdict
from rollart_flow.validation import check_count, check_number

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_LARGEST_ANSWER = 1 << 20
_JUDGE_MB = 128
"""Memory of the box beside that of the answer's process [MiB]."""


@dataclass(frozen=True, slots=True)
class CodeTests:
    """Reward 1 if the answer's code passes every test of the task, else 0: `code_tests(...)`.

    The code is the answer's last closed block between lines of three backticks, or the whole answer
    if it has none. `reward_parts` has the number of tests and of those passed. The forms of tests
    are those of `rewards.code.cases`; a unit test may define `check(candidate)`, functions named
    `test...` or cases of `unittest`, which are then run. It calls the answer's functions by name,
    in another process: arguments and results are copies of plain data, and a function that returns
    None changes its arguments in place.

    Raises:
        SettingsError: a limit is not positive, or `inside` is not valid.
    """

    key: str = "answer"
    """Key of the task's payload that holds the tests."""
    _: KW_ONLY
    inside: str = ""
    """Part of the last action that is the answer, as in `exact`."""
    partial: bool = False
    """Whether the reward is the share of the tests that pass."""
    entry_key: str = "entry_point"
    """Key of the payload that names the function which `check(candidate)` gets, if it has one."""
    setup_key: str = "setup"
    """Key of the payload with code that unit tests rely on, if it has one. It runs away from the
    answer, which cannot redefine its names."""
    timeout_s: float = 5.0
    """Time of each test [s]."""
    total_s: float = 50.0
    """Time of all tests together; tests that are left then count as failed [s]."""
    memory_mb: int = 256
    """Memory of the answer's process [MiB]."""
    image: str | None = None
    """Root file system of the box, for answers that need more than Python's standard library."""
    sandbox: str = field(default="bubblewrap", kw_only=True)
    """Name of the kind of sandbox, where no environment has a box for it."""

    def __post_init__(self) -> None:
        check_inside("code_tests", self.inside)
        check_count("code_tests.memory_mb", self.memory_mb, low=1)
        for name in ("timeout_s", "total_s"):
            check_number(f"code_tests.{name}", getattr(self, name), low=0, open_low=True)

    def __call__(self, trajectory: Trajectory) -> Score:
        verdicts = self.judge(trajectory, LocalBoxes(self.sandbox))
        return self.score(verdicts)

    def judge(self, trajectory: Trajectory, boxes: Boxes) -> list[Verdict]:
        """Return the verdict of each test on the last action, in a box that is closed again.

        Raises:
            RewardFailedError: the task has no tests that can be read.
            SandboxError: the box failed.
        """
        where = f"code_tests: {self.key!r} of task {trajectory.task_id!r}"
        tests = read_tests(from_task(trajectory, self.key, "code_tests"), where)
        answer = answer_of(trajectory, self.inside)
        code = "" if answer is None else last_block(answer)
        if not code.strip() or len(code) > _LARGEST_ANSWER:
            said = "the answer has no code" if not code.strip() else "the answer is too long"
            names = [f"test {number}" for number in range(1, len(tests) + 1)]
            return [Verdict(key=name, passed=False, message=said) for name in names]
        limits = TestLimits(
            timeout_s=self.timeout_s, total_s=self.total_s, memory_mb=self.memory_mb
        )
        box = boxes.open(self.box(tests))
        try:
            return verdicts_of(box, code, tests, limits, self._context(trajectory))
        finally:
            box.close()

    def score(self, verdicts: list[Verdict]) -> tuple[float, dict[str, float]]:
        """Return the reward and its parts."""
        share = share_passed(verdicts)
        passed = sum(verdict.passed is True for verdict in verdicts)
        reward = share if self.partial else float(share == 1.0)
        return reward, {"tests": float(len(verdicts)), "passed": float(passed)}

    def box(self, tests: Tests = ()) -> SandboxSpec:
        """Return the spec of the box, which keeps as much output as the tests expect."""
        longest = max(
            (len(it.stdout.encode()) for it in tests if isinstance(it, ProgramTest)), default=0
        )
        limits = SandboxLimits(
            memory_mb=self.memory_mb + _JUDGE_MB, output_kb=max(64, 4 * (longest >> 10) + 4)
        )
        return SandboxSpec(image=self.image, limits=limits)

    def _context(self, trajectory: Trajectory) -> UnitContext:
        payload = json.loads(trajectory.task)
        found = [payload.get(key) or "" for key in (self.entry_key, self.setup_key)]
        for key, value in zip((self.entry_key, self.setup_key), found, strict=True):
            if not isinstance(value, str):
                raise RewardFailedError(
                    f"code_tests: {key!r} of task {trajectory.task_id!r} is {value!r}; give a text"
                )
        return UnitContext(entry=found[0], setup=found[1])


def last_block(text: str) -> str:
    """Return the last closed block between lines of three backticks, or the text if it has none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text


code_tests = CodeTests
"""The rule as pipelines name it."""
