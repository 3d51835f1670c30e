"""Code against tests: what passes, what fails, and answers that try to pass without solving."""

import asyncio
from typing import Any

import pytest

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards import code_tests
from rollart_flow.rewards.code.cases import ProgramTest, UnitTest, read_tests
from rollart_flow.rewards.code.rule import CodeTests, last_block
from rollart_flow.rewards.score import score
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.types.verdicts import Verdict
from tests.builders import answered

needs_boxes = pytest.mark.skipif(
    bool(SANDBOXES.load("bubblewrap").problem()), reason=SANDBOXES.load("bubblewrap").problem()
)
DOUBLE = ["assert double(2) == 4", "assert double('ab') == 'abab'"]
SUM = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]


def judged(
    code: str, tests: object, rule: CodeTests | None = None, **more: object
) -> list[Verdict]:
    rule = rule or code_tests()
    return rule.judge(answered(code, answer=tests, **more), LocalBoxes())


def passed(code: str, tests: object, rule: CodeTests | None = None, **more: object) -> list[Any]:
    return [verdict.passed for verdict in judged(code, tests, rule, **more)]


@needs_boxes
def test_unit_tests_have_a_verdict_each() -> None:
    assert passed("def double(x): return 2 * x", DOUBLE) == [True, True]
    wrong, error = judged("def double(x): return x ** 2", DOUBLE)
    assert (wrong.key, wrong.passed, wrong.message) == ("test 1", True, None)
    assert (error.key, error.passed) == ("test 2", False)
    assert (error.message or "").startswith("TypeError: TypeError: unsupported operand")


@needs_boxes
def test_a_program_reads_and_prints() -> None:
    code = "print(sum(map(int, input().split())))"
    assert passed(code, SUM) == [True, True]
    assert passed("print(3)", SUM) == [True, False]
    assert [it.message for it in judged("print(3)", SUM)] == [None, "wrong output"]
    assert passed(code + "\nraise SystemExit(1)", SUM) == [False, False]


@needs_boxes
def test_the_reward_is_1_for_all_tests_or_their_share() -> None:
    half = "print(3)"
    assert code_tests()(answered(half, answer=SUM)) == (0.0, {"tests": 2.0, "passed": 1.0})
    assert code_tests(partial=True)(answered(half, answer=SUM)) == (
        0.5,
        {"tests": 2.0, "passed": 1.0},
    )


@needs_boxes
def test_it_is_scored_in_a_process_of_its_own() -> None:
    code = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\n"
    result = asyncio.run(score(answered(code, answer=DOUBLE), code_tests()))
    assert (result.reward, result.error) == (1.0, None)
    assert result.reward_parts == {"tests": 2.0, "passed": 2.0}


CLASS = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def top(self):
        if not self.items: raise IndexError("empty")
        return self.items[-1]
"""
USE = """
stack = Stack()
stack.push((1, 2.5, {"a": None}))
assert len(stack) == 1 and list(stack) == [(1, 2.5, {"a": None})]
assert stack.top()[0] == 1 and stack.items[0][2] == {"a": None}
try:
    Stack().top()
except IndexError as error:
    assert "empty" in str(error)
else:
    raise AssertionError("no error")
"""


@needs_boxes
@pytest.mark.parametrize(
    ("code", "test"),
    [
        (CLASS, USE),
        ("def shuffle(xs): xs.sort()", "xs = [3, 1, 2]; shuffle(xs); assert xs == [1, 2, 3]"),
        ("def gen(n):\n    yield from range(n)", "assert list(gen(3)) == [0, 1, 2]"),
        ("def big(): return 3 ** 5000", "assert big() == 3 ** 5000"),
        ("def half(): return 0.5, 1j, b'x', {1}", "assert half() == (0.5, 1j, b'x', {1})"),
        ("import math\ndef f(): return 2.0", "assert math.isclose(f(), 2.0)"),
        ("def f(): return 2", "from solution import f\ndef test_it():\n    assert f() == 2"),
        (
            "def f(): return 2",
            "import unittest\nclass TestF(unittest.TestCase):\n"
            "    def test_f(self): self.assertEqual(f(), 2)",
        ),
    ],
)
def test_values_objects_and_errors_reach_the_test(code: str, test: str) -> None:
    assert [(it.passed, it.message) for it in judged(code, [test])] == [(True, None)]


@needs_boxes
def test_a_check_gets_the_function_of_the_task_and_the_setup_is_the_task_s() -> None:
    setup = "def poly(x): return x - 3\ndef root(): ..."
    check = "def check(candidate):\n    assert poly(candidate()) == 0"
    more: dict[str, Any] = {"entry_point": "root", "setup": setup}
    assert passed("def root(): return 3", check, **more) == [True]
    assert passed("def root(): return 4", check, **more) == [False]
    cheat = "def root(): return 4\ndef poly(x): return 0"
    assert passed(cheat, check, **more) == [False]
    (verdict,) = judged("def other(): ...", check, **more)
    assert verdict.message == "NameError: the answer does not define 'root'"


EQUAL = """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
class Thing:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
"""
HACKS = {
    "exits": "import os; os._exit(0)",
    "exits when called": "import os\ndef double(x): os._exit(0)",
    "raises SystemExit": "def double(x): raise SystemExit(0)",
    "prints": "print('PASSED', 'ok', '1 passed', sep='\\n')\ndef double(x): return None",
    "equals everything": EQUAL + "def double(x): return Thing()",
    "is a number that equals everything": EQUAL + "def double(x): return Any(5)",
    "patches builtins": (
        "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
        "builtins.len = lambda x: 0\n__debug__ and None\ndef double(x): return 0"
    ),
    "patches modules": (
        "import sys\nfor name in list(sys.modules):\n"
        "    if name not in ('sys', 'builtins'): sys.modules[name] = None\n"
        "def double(x): return 0"
    ),
    "changes the test": (
        "import sys, gc\nfor it in gc.get_objects():\n"
        "    if isinstance(it, dict) and 'test' in it: it['test'] = 'pass'\n"
        "def double(x): return 0"
    ),
    "traces": "import sys\nsys.settrace(lambda *a: None)\ndef double(x): return 0",
    "looks up the frames": (
        "import sys\ndef double(x):\n    frame = sys._getframe()\n"
        "    while frame: frame.f_globals.update(PASSED=1, FAILED=0); frame = frame.f_back\n"
        "    return 0"
    ),
    "kills the judge": "import os, signal\ndef double(x): os.kill(os.getppid(), signal.SIGKILL)",
    "asks the judge to end": (
        "import os, signal\ndef double(x): os.kill(os.getppid(), signal.SIGTERM)"
    ),
    "writes into the judge": (
        "import os\nfor name in ('mem', 'fd/1', 'fd/2', 'environ', 'maps'):\n"
        "    try: open(f'/proc/{os.getppid()}/{name}', 'r+b').write(b'PASSED')\n"
        "    except OSError: pass\n"
        "def double(x): return 0"
    ),
    "answers for the judge": (
        "import os\nfor number in range(3, 64):\n"
        "    try: os.write(number, b'\\0\\0\\0\\1T')\n"
        "    except OSError: pass\n"
        "def double(x): return 0"
    ),
    "overwrites files": (
        "import os\nfor folder in ('/work', '/tmp'):\n"
        "    for name in ('test.py', 'answer.py', 'conftest.py', 'sitecustomize.py', 'verdict'):\n"
        "        open(os.path.join(folder, name), 'w').write('raise SystemExit(0)')\n"
        "def double(x): return 0"
    ),
    "leaves a daemon": (
        "import os\nif not os.fork():\n    os.setsid()\n    while True: pass\n"
        "def double(x): return 0"
    ),
    "nests deeply": "def double(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y",
    "returns too much": "def double(x): return 'x' * (65 << 20)",
    "eats memory": "def double(x): return len(bytearray(1 << 33))",
    "is no code": "def double(x: return",
    "is a lone surrogate": "double = '\ud800'",
}


@needs_boxes
@pytest.mark.parametrize("name", HACKS)
def test_an_answer_that_does_not_solve_the_task_does_not_pass(name: str) -> None:
    rule = code_tests(timeout_s=3.0)
    assert passed(HACKS[name], DOUBLE, rule) == [False, False]


@needs_boxes
@pytest.mark.parametrize(
    "code",
    [
        "print('PASSED')",
        "import os; os._exit(0)",
        "import pathlib\nfor path in pathlib.Path('/').glob('*/*'): print(path)",
        "import sys; sys.stdout.write('3'); sys.exit(3)",
        "print('3' * (1 << 22))",
        "import os\nwhile True: os.fork()",
    ],
)
def test_a_program_passes_by_its_output_alone(code: str) -> None:
    assert passed(code, SUM, code_tests(timeout_s=1.5)) == [False, False]


@needs_boxes
def test_a_loop_without_end_fails_its_test_and_leaves_the_others() -> None:
    code = "def double(x):\n    while x == 2: pass\n    return 2 * x"
    slow, other = judged(code, DOUBLE, code_tests(timeout_s=1.0))
    assert (slow.passed, slow.message) == (False, "TimeIsOver: the time of the test is over")
    assert other.passed is True
    first, *rest = judged("while True: pass", SUM, code_tests(timeout_s=5.0, total_s=0.5))
    assert (first.passed, first.message) == (False, "killed by its limit of time")
    assert [it.passed for it in rest] == [None]
    assert rest[0].message == "not run: the time of all tests is over"


def test_without_code_nothing_passes_and_no_box_is_opened() -> None:
    boxes = LocalBoxes("none of this name")
    (one, _) = code_tests().judge(answered("```python\n```", answer=DOUBLE), boxes)
    assert (one.passed, one.message) == (False, "the answer has no code")
    assert code_tests()(answered(answer=DOUBLE))[0] == 0.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```", "y = 2\n"),
        ("```python\nx = 1\n```\n```python\ny = 2", "x = 1\n"),
        ("a `x` b", "a `x` b"),
    ],
)
def test_the_last_closed_block_is_the_code(text: str, code: str) -> None:
    assert last_block(text) == code


@pytest.mark.parametrize(
    ("value", "tests"),
    [
        (SUM, (ProgramTest("1 2\n", "3\n"), ProgramTest("5 5\n", "10\n"))),
        ({"inputs": ["1"], "outputs": ["2"]}, (ProgramTest("1", "2"),)),
        ('[{"stdin": "1", "stdout": "2"}]', (ProgramTest("1", "2"),)),
        (["assert f()"], (UnitTest("assert f()"),)),
        ("assert f()", (UnitTest("assert f()"),)),
        ("[f() for _ in range(3)]", (UnitTest("[f() for _ in range(3)]"),)),
    ],
)
def test_tests_have_these_forms(value: object, tests: object) -> None:
    assert read_tests(value, "here") == tests


@pytest.mark.parametrize(
    "value", ["", [], {}, 7, [1], [{"input": "1"}], {"inputs": ["1"], "outputs": []}, [" "]]
)
def test_what_holds_no_tests_is_an_error(value: object) -> None:
    with pytest.raises(RewardFailedError, match=r"'answer' of task 'math/1': .* holds no tests"):
        code_tests()(answered("x = 1", answer=value))


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0}, {"total_s": -1.0}, {"memory_mb": 0}, {"inside": "<a>"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="code_tests"):
        code_tests(**wrong)


def test_a_task_whose_entry_point_is_no_text_is_an_error() -> None:
    with pytest.raises(RewardFailedError, match="'entry_point' of task 'math/1' is 7; give a text"):
        code_tests()(answered("x = 1", answer="assert x", entry_point=7))
