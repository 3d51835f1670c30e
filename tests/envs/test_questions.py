"""Questions from tables: files, folders, splits, checks, and errors that name the row."""

import csv
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow import rewards
from rollart_flow.envs import Questions
from rollart_flow.errors import EnvironmentFailedError, RewardFailedError, SettingsError
from rollart_flow.rewards import code_tests, exact, math_equal
from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.types import Split, Task

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(40)]
NO_BOXES = SANDBOXES.load("bubblewrap").problem()


def jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arrow(path: Path, rows: list[dict[str, Any]], *, stream: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def tasks(domain: Questions) -> tuple[list[Task], list[Task]]:
    """Return (trained, held out)."""
    return list(domain.tasks(Split.EVALUATION, 0)), list(domain.held_out(0))


def questions(found: list[Task]) -> set[str]:
    return {json.loads(task.payload)["question"] for task in found}


def test_all_kinds_of_files_give_the_same_tasks(tmp_path: Path) -> None:
    files = [jsonl(tmp_path / "a.jsonl", ROWS), arrow(tmp_path / "b.arrow", ROWS)]
    files += [arrow(tmp_path / "c.arrow", ROWS, stream=False), tmp_path / "d.parquet"]
    pl.DataFrame(ROWS).write_parquet(files[-1])
    files += [tmp_path / "e.csv", tmp_path / "f.json"]
    with files[-2].open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
    files[-1].write_text(json.dumps(ROWS))
    found = [tasks(Questions(str(file))) for file in files]
    assert all(each == found[0] for each in found)
    trained, held = found[0]
    assert len(trained) + len(held) == len(ROWS)
    assert held
    assert not questions(trained) & questions(held)
    assert json.loads(trained[0].payload).keys() == {"question", "answer"}


def test_training_goes_through_all_rows_in_another_order_each_time(tmp_path: Path) -> None:
    domain = Questions(str(jsonl(tmp_path / "a.jsonl", ROWS)))
    count = len(tasks(domain)[0])
    stream = domain.tasks(Split.TRAIN, 3)
    first, second = list(islice(stream, count)), list(islice(stream, count))
    assert first != second
    assert questions(first) == questions(second) == questions(tasks(domain)[0])
    assert list(islice(domain.tasks(Split.TRAIN, 3), count)) == first


@pytest.mark.parametrize(
    ("train", "held"),
    [
        ("train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"),  # save_to_disk
        ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"),
        ("main/train.jsonl", "main/test.jsonl"),
        ("my-set-train.arrow", "my-set-test.arrow"),
    ],
)
def test_folders_of_hugging_face_name_the_split(tmp_path: Path, train: str, held: str) -> None:
    jsonl(tmp_path / "dataset_infos.json", [{"default": {}}])
    jsonl(tmp_path / "train" / "state.json", [{"_data_files": []}])
    for name, rows in ((train, ROWS[:30]), (held, ROWS[30:])):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pl.DataFrame(rows).write_parquet(path)
        else:
            (arrow if path.suffix == ".arrow" else jsonl)(path, rows)
    trained, held_out = tasks(Questions(str(tmp_path)))
    assert questions(trained) == {row["question"] for row in ROWS[:30]}
    assert questions(held_out) == {row["question"] for row in ROWS[30:]}


def test_columns_are_named_in_one_line(tmp_path: Path) -> None:
    rows = [
        {"problem": f"Say {n}.", "gold": n, "level": "low", "id": n, "part": part}
        for n, part in enumerate(("train", "Train", "test", "dev"))
    ]
    domain = Questions(
        str(jsonl(tmp_path / "a.jsonl", rows)),
        prompt="problem", answer="gold", also=("level",), task_id="id", split="part",
        template="({level}) {question}", system="Be brief.", name="saying",
    )  # fmt: skip
    trained, held = tasks(domain)
    assert [task.task_id for task in trained + held] == ["0", "1", "2", "3"]
    assert len(trained) == 2
    assert {task.domain for task in trained} == {domain.name} == {"saying"}
    shown, _ = domain.make().reset(0, trained[0].payload)
    assert [(it.role, it.text) for it in shown] == [  # type: ignore[union-attr]
        ("system", "Be brief."),
        ("user", "(low) Say 0."),
    ]
    assert domain.example_action(trained[0], Random(0)) in ("0", "1")


def test_a_check_judges_in_the_environment_and_without_one_the_pipeline_does(
    tmp_path: Path,
) -> None:
    path = str(jsonl(tmp_path / "a.jsonl", [{"question": "1/2 + 1/2?", "answer": "1"}]))
    plain = Questions(path, held_out_fraction=0.0)
    checked = Questions(path, held_out_fraction=0.0, check=math_equal())
    assert (plain.environment.inline, checked.environment.inline) == (True, False)
    (task,) = tasks(plain)[0]
    environment = plain.make()
    assert environment.reset(0, task.payload) == ("1/2 + 1/2?", {})
    assert environment.step(r"\boxed{1.0}") == ("", 0.0, True, False, {})
    judged = checked.make()
    judged.reset(0, task.payload)
    for action, reward in ((r"\boxed{1.0}", 1.0), ("2", 0.0)):
        _, given, terminated, _, info = judged.step(action)
        assert (given, terminated, info["success"]) == (reward, True, reward == 1.0)
        assert [(it["key"], it["value"]) for it in info["verdicts"]] == [("reward", reward)]  # type: ignore[attr-defined]
        assert info["verifier"] == checked.digests(task).verifier
    assert plain.digests(task).verifier != checked.digests(task).verifier
    assert checked.box(task.payload) is None


@pytest.mark.parametrize(
    ("check", "answer", "gold"),
    [
        (math_equal(), r"\frac{1}{2}", r"\frac{1}{2}"),
        (math_equal(inside=r"\boxed"), 7, r"\boxed{7}"),
        (exact(inside="answer"), ["Rome", "Roma"], "<answer>Rome</answer>"),
        (exact(), 0.5, "0.5"),
        (exact(), {"a": 1}, None),
        (code_tests(), ["assert f() == 1"], None),
        (None, "1", None),
    ],
)
def test_the_answer_of_a_row_is_its_known_solution(
    check: Any, answer: object, gold: str | None, tmp_path: Path
) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"question": "?", "answer": answer}])
    domain = Questions(str(path), held_out_fraction=0.0, check=check)
    ((task,), _) = tasks(domain)
    known = domain.solutions(task)
    assert known == ({} if gold is None else {"gold": [gold], "noop": [""]})
    for name, actions in known.items():
        environment = domain.make()
        environment.reset(0, task.payload)
        *_, info = environment.step(actions[0])
        assert info["success"] is (name == "gold")


@pytest.mark.skipif(bool(NO_BOXES), reason=NO_BOXES)
def test_code_has_a_verdict_for_each_test_in_a_box_of_the_environment(tmp_path: Path) -> None:
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'"]
    rows = [{"question": "Write double(x).", "answer": tests}]
    path = str(jsonl(tmp_path / "a.jsonl", rows))
    domain = Questions(path, held_out_fraction=0.0, check=code_tests(partial=True))
    (task,) = tasks(domain)[0]
    spec = domain.box(task.payload)
    assert spec is not None
    assert spec.limits.memory_mb == 384
    environment = domain.make()
    environment.reset(0, task.payload)
    _, reward, _, _, info = environment.step("```python\ndef double(x): return x + x\n```")
    assert (reward, info["success"]) == (1.0, True)
    environment.reset(0, task.payload)
    _, reward, _, _, info = environment.step("def double(x): return x * 2.0 if x == 2 else x")
    assert (reward, info["success"]) == (0.5, False)
    assert [row["passed"] for row in info["verdicts"]] == [True, False]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([{"question": "a?"}], {}, "a.jsonl: row 1: column 'answer' is missing; it has question"),
        ([*ROWS, {"question": "", "answer": "1"}], {}, "row 41: column 'question' is empty"),
        (
            [{"question": "a?", "answer": " "}],
            {},
            "row 1: column 'answer' is empty; give an answer",
        ),
        ([{"question": "a?", "answer": None}], {}, "column 'answer' is empty"),
        (
            [{"question": ["a"], "answer": "1"}],
            {},
            "column 'question' is of type list; give a text",
        ),
        ([{"question": None, "answer": "1"}], {}, "column 'question' is empty; give a text"),
        ([ROWS[0], ROWS[1], ROWS[0]], {}, "row 3: task 'questions/.*' is that of .*: row 1; each"),
        ([ROWS[0], ROWS[0]], {"task_id": "answer"}, "row 2: column 'answer': task '0' is that of"),
        ([{**ROWS[0], "id": 1.5}], {"task_id": "id"}, "column 'id' is of type float"),
        (ROWS, {"also": ("level",)}, "row 1: column 'level' is missing"),
        (ROWS, {"split": "part"}, "row 1: column 'part' is missing"),
        ([{**ROWS[0], "part": "test"}], {"split": "part"}, "has no row to train on"),
        ([], {}, "has no row to train on"),
        ([[1, 2]], {}, "row 1 is no object with columns"),
    ],
)
def test_a_wrong_row_is_named_in_one_line(
    tmp_path: Path, rows: list[object], more: dict[str, Any], message: str
) -> None:
    domain = Questions(str(jsonl(tmp_path / "a.jsonl", rows)), **more)
    with pytest.raises(SettingsError, match=message) as raised:
        tasks(domain)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "torn.jsonl").write_text('{"question": "a?", "answer": "1"}\n{"quest')
    (tmp_path / "odd.csv").write_text("question,answer\na?,1\nb?\n")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("torn.parquet", "torn.parquet cannot be read: "),
        ("torn.jsonl", "torn.jsonl: row 2 is no JSON"),
        ("odd.csv", "odd.csv: row 2 has another number of columns than the first line"),
        ("notes.txt", "notes.txt is none of .parquet"),
        ("empty", "empty holds no file of .parquet"),
        ("absent", "absent does not exist; give a file or a folder"),
    ):
        with pytest.raises(SettingsError, match=message):
            tasks(Questions(str(tmp_path / name)))


def test_rows_are_read_again_when_the_file_has_changed(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROWS[:3])
    domain = Questions(str(path), held_out_fraction=0.0)
    assert len(tasks(domain)[0]) == 3
    jsonl(path, ROWS)
    assert len(tasks(domain)[0]) == len(ROWS)


async def judge(trajectory: object) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"held_out_fraction": 1.0}, "at least 0 and under 1"),
        ({"template": "Question:"}, "must have {question}"),
        ({"template": "{question} {level}"}, "in braces only question"),
        ({"template": "{question"}, "template"),
        ({"also": ("answer",)}, "also names 'answer'"),
        ({"name": ""}, "name is empty"),
        ({"check": judge}, "check is async or composed"),
        ({"check": rewards.compose(exact())}, "check is async or composed"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Questions("a.jsonl", **wrong)


def test_a_payload_or_a_row_that_cannot_be_judged_fails_the_attempt(tmp_path: Path) -> None:
    environment = Questions("a.jsonl", check=code_tests()).make()
    with pytest.raises(EnvironmentFailedError, match="the payload fits no question"):
        environment.reset(0, "{}")
    environment.reset(0, json.dumps({"question": "a?", "answer": 7}))
    with pytest.raises(RewardFailedError, match="holds no tests"):
        environment.step("x = 1")
