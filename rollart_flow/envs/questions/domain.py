"""The domain of questions with verifiable answers (RLVR).

    Questions("gsm8k.parquet", prompt="question", answer="answer", check=math_equal())

A row is a task, and its payload is what a reward reads: `question`, `answer` and further columns.
Without a check the environment gives no reward, and `reward(up, math_equal())` judges the answers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from hashlib import blake2b, sha256
from random import Random
from string import Formatter
from typing import Any, ClassVar, NamedTuple

from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.questions.environment import (
    JudgedQuestion,
    PlainQuestion,
    as_boxed,
    verifier_of,
)
from rollart_flow.envs.questions.table import TableRow, read_rows, stamp
from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.composition import Combined, is_async
from rollart_flow.rewards.text import marked
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.types import Split, Task
from rollart_flow.types.verdicts import TaskDigests

TRAIN = "train"


@dataclass(frozen=True)
class Questions(Domain):
    """Questions of a table, one turn each.

    Rows are read when the first task is asked for. A row belongs to training if the column `split`,
    or its file's or folder's name, says "train"; where neither says anything, a hash of the
    question decides, so that it is always on the same side.

    Raises SettingsError if a setting is wrong; reading raises it for a file or a row, which the
    message names.
    """

    path: str
    """File or folder of Parquet, Arrow, JSONL, JSON or CSV; see `envs.questions.table`."""
    _: KW_ONLY
    prompt: str = "question"
    """Column with the question, a text."""
    answer: str = "answer"
    """Column with the answer, for the check or the reward: whatever JSON can say."""
    also: tuple[str, ...] = ()
    """Further columns of the payload, under their own names."""
    task_id: str = ""
    """Column that names a task, with values that differ; empty: a hash of the row."""
    split: str = ""
    """Column whose value is "train" for rows that are trained on; empty: see above."""
    held_out_fraction: float = 0.1
    """Share of the rows that training never sees, where a hash decides."""
    template: str = "{question}"
    """Text for the policy, with `{question}` and, in braces, names of columns of `also`."""
    system: str = ""
    """Text of a system message before the question; empty: none."""
    check: RewardFunction | None = None
    """Rule that judges an answer in the environment, such as `math_equal()` or `code_tests()`."""
    name: str = "questions"  # type: ignore[misc]  # several tables may be in one pipeline
    """Name of the domain, which differs where a pipeline has several tables."""
    max_turns: ClassVar[int] = 1  # type: ignore[misc]  # a question has one answer

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "also", tuple(self.also))
        if not 0.0 <= self.held_out_fraction < 1.0:
            raise SettingsError(
                f"Questions: held_out_fraction is {self.held_out_fraction}; "
                "it must be at least 0 and under 1"
            )
        known = {"question", *self.also}
        try:
            fields = {
                name for _, name, _, _ in Formatter().parse(self.template) if name is not None
            }
        except ValueError as error:
            raise SettingsError(f"Questions: template {self.template!r}: {error}") from error
        if "question" not in fields or fields - known:
            raise SettingsError(
                f"Questions: template {self.template!r} must have {{question}}, and in braces only "
                f"{', '.join(sorted(known))}; write {{{{ and }}}} for braces"
            )
        if taken := {"question", "answer"} & {*self.also}:
            raise SettingsError(f"Questions: also names {min(taken)!r}, which the payload has")
        if not self.name:
            raise SettingsError("Questions: name is empty")
        if self.check is not None and (isinstance(self.check, Combined) or is_async(self.check)):
            raise SettingsError(
                "Questions: check is async or composed, which needs the reward stage; leave it out "
                "and write reward(up, fn)"
            )

    @property
    def environment(self) -> type[Environment]:  # type: ignore[override]  # a setting decides it
        """The class that shows a question."""
        return PlainQuestion if self.check is None else JudgedQuestion

    def make(self) -> Environment:
        if self.check is None:
            return PlainQuestion(self.template, self.system)
        return JudgedQuestion(self.template, self.system, self.check, self.name)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The rows that are trained on: in a fresh order again and again, or once in order."""
        trained = self._split()[0]
        if not trained:
            raise SettingsError(f"Questions: {self.path} has no row to train on")
        if split is not Split.TRAIN:
            yield from trained
            return
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from random.sample(trained, len(trained))

    def held_out(self, seed: int) -> Iterator[Task]:
        """The rows that training never sees, each once."""
        return iter(self._split()[1])

    def box(self, task: str) -> SandboxSpec | None:
        """The box of a check that runs code; None for other checks."""
        spec = getattr(self.check, "box", None)
        return spec() if callable(spec) else None

    def solutions(self, task: Task) -> Mapping[str, Sequence[str]]:
        """The answer of the row where a check compares with it, the first of several.

        Empty without a check, for a check that runs code, and for an answer that is no text and no
        number: then nothing is known that solves the task.
        """
        answer = json.loads(task.payload)["answer"]
        if isinstance(answer, list) and answer:
            answer = answer[0]
        compared = self.check is not None and as_boxed(self.check) is None
        if not compared or isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return {}
        return {"gold": [marked(str(answer), getattr(self.check, "inside", ""))], "noop": [""]}

    def digests(self, task: Task) -> TaskDigests:
        payload = sha256(f"{task.domain}/{task.payload}".encode(errors="replace")).hexdigest()
        return TaskDigests(task=payload, verifier=verifier_of(self.check))

    def example_action(self, task: Task, random: Random) -> str:
        """The answer of another row, if it is a text or a number."""
        other = json.loads(random.choice(self._split()[0]).payload)["answer"]
        if not isinstance(other, str | int | float):
            raise TypeError(f"domain {self.name!r}: an answer that is no text cannot be an example")
        return str(other)

    def _split(self) -> tuple[list[Task], list[Task]]:
        """Return (trained, held out); the rows are read again when a file has changed."""
        columns = TaskColumns(
            self.path, self.prompt, self.answer, self.also, self.task_id, self.split,
            self.held_out_fraction, self.name,
        )  # fmt: skip
        return _tasks_of(columns, stamp(self.path))


class TaskColumns(NamedTuple):
    """The settings of `Questions` that decide the tasks of a table."""

    path: str
    prompt: str
    answer: str
    also: tuple[str, ...]
    task_id: str
    split: str
    held_out_fraction: float
    domain: str


@lru_cache(maxsize=8)
def _tasks_of(columns: TaskColumns, stamped: object) -> tuple[list[Task], list[Task]]:
    """Return (trained, held out) of files with a stamp."""
    found: tuple[list[Task], list[Task]] = ([], [])
    seen: dict[str, str] = {}
    for row in read_rows(columns.path):
        task, held = _task(row, columns)
        if task.task_id in seen:
            column = f"column {columns.task_id!r}: " if columns.task_id else ""
            raise SettingsError(
                f"questions: {row.where}: {column}task {task.task_id!r} is that of "
                f"{seen[task.task_id]}; each row needs one of its own"
            )
        seen[task.task_id] = row.where
        found[held].append(task)
    return found


def _task(row: TableRow, columns: TaskColumns) -> tuple[Task, bool]:
    """Return the task of a row, and whether it is held out."""
    question = _text(row, columns.prompt)
    payload: dict[str, Any] = {"question": question, "answer": _answer(row, columns.answer)}
    payload |= {name: _value(row, name) for name in columns.also}
    try:
        packed = json.dumps(payload, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"questions: {row.where}: is no JSON: {error}") from error
    name = f"{columns.domain}/{_digest(packed).hex()}"
    task_id = _text(row, columns.task_id) if columns.task_id else name
    said = _text(row, columns.split) if columns.split else row.split
    share = int.from_bytes(_digest(question)) / 2**64
    held = said.lower() != TRAIN if said else share < columns.held_out_fraction
    return Task(task_id, columns.domain, packed), held


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="replace"), digest_size=8).digest()


def _value(row: TableRow, column: str) -> Any:
    """Return the value of a column.

    Raises:
        SettingsError: the row does not have it.
    """
    values: Mapping[str, Any] = row.values
    if column not in values:
        raise SettingsError(
            f"questions: {row.where}: column {column!r} is missing; it has {', '.join(values)}"
        )
    return values[column]


def _text(row: TableRow, column: str) -> str:
    """Return the text of a column; a whole number is one too."""
    value = _value(row, column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        kind = "empty" if value is None else f"of type {type(value).__name__}"
        raise SettingsError(f"questions: {row.where}: column {column!r} is {kind}; give a text")
    if not value.strip():
        raise SettingsError(f"questions: {row.where}: column {column!r} is empty; give a text")
    return value


def _answer(row: TableRow, column: str) -> Any:
    value = _value(row, column)
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        raise SettingsError(f"questions: {row.where}: column {column!r} is empty; give an answer")
    return value
