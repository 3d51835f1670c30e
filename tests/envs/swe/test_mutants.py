"""Tasks made of a package by faults: what is admitted, stated, solved, and kept."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.envs import SweMutants
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore
from rollart_flow.envs.swe.unified_diff import apply_diff
from rollart_flow.envs.swe.workspace import payload_digest
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split
from tests.envs.swe.tiny import PACKAGE, SUBMIT, kinds, played, tree_of, written

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


def stored(domain: SweMutants) -> list[SweTask]:
    store = SweTaskStore(Path(domain.store_folder))
    return [store.task(digest) for digest in domain.prepared()]


def test_a_task_has_failing_and_passing_tests_and_the_reverse_change(mutants: SweMutants) -> None:
    store = SweTaskStore(Path(mutants.store_folder))
    tasks = stored(mutants)
    assert len(tasks) == 2
    for task in tasks:
        assert task.fail_to_pass
        assert task.pass_to_pass
        assert len({*task.fail_to_pass, *task.pass_to_pass}) == 6
        files = store.files(task)
        assert set(files.start) == {"README.md", "marks/__init__.py"}
        solved = apply_diff(files.start, task.gold)
        assert solved["marks/__init__.py"] == tree_of(PACKAGE)["marks/__init__.py"]
        assert solved != files.start


def test_the_issue_names_the_failing_test_and_not_the_line_of_the_fault(
    mutants: SweMutants,
) -> None:
    for task in stored(mutants):
        first = next(iter(task.fail_to_pass))
        assert first in task.statement
        added = [line[1:].strip() for line in task.setup.splitlines() if line.startswith("+ ")]
        removed = [line[1:].strip() for line in task.setup.splitlines() if line.startswith("- ")]
        assert added
        assert not any(line in task.statement for line in added + removed)


def test_the_same_settings_give_the_same_tasks_and_another_seed_others(
    mutants: SweMutants, tmp_path: Path
) -> None:
    again = replace(mutants, folder=str(tmp_path / "again"))
    assert [task.setup for task in stored(again)] == [task.setup for task in stored(mutants)]
    other = replace(mutants, folder=str(tmp_path / "again"), seed=1)
    assert [task.setup for task in stored(other)] != [task.setup for task in stored(mutants)]


def test_tasks_are_made_once(mutants: SweMutants, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.prepared()
    monkeypatch.setattr("rollart_flow.envs.swe.mutant_maker.run_tests", None)
    same = replace(mutants, output_characters=mutants.output_characters + 1)
    assert same.prepared() == mutants.prepared()


def test_training_is_endless_and_shuffled_and_held_out_tasks_are_apart(mutants: SweMutants) -> None:
    tasks = mutants.tasks(Split.TRAIN, seed=3)
    first = [next(tasks).task_id for _ in range(6)]
    assert len(set(first)) == 2
    again = mutants.tasks(Split.TRAIN, seed=3)
    assert first == [next(again).task_id for _ in range(6)]
    some = replace(mutants, held_out_fraction=0.999999)
    with pytest.raises(SettingsError, match="no task is left to train on"):
        next(some.tasks(Split.TRAIN, 0))
    assert len(list(mutants.tasks(Split.EVALUATION, 0))) == 2
    assert list(mutants.held_out(0)) == []


def test_the_solution_is_rewarded_and_its_stored_diff_is_judged_again(mutants: SweMutants) -> None:
    task = next(mutants.tasks(Split.EVALUATION, 0))
    reward, info = played(mutants.make(), task.payload, mutants.solutions(task)["gold"])
    assert (reward, info["success"], info["suspicions"]) == (1.0, True, [])
    assert info["verifier"] == mutants.digests(task).verifier
    assert (
        info["diff"] == SweTaskStore(Path(mutants.folder)).task(payload_digest(task.payload)).gold
    )
    judgement = mutants.judge(task.payload, info["diff"], LocalBoxes())
    assert (judgement.reward, judgement.success, judgement.verifier) == (1, True, info["verifier"])
    assert [verdict.key for verdict in judgement.verdicts] == [
        verdict["key"] for verdict in info["verdicts"]
    ]
    assert not mutants.judge(task.payload, "", LocalBoxes()).success


def test_a_task_whose_stored_files_were_changed_is_refused(
    mutants: SweMutants, tmp_path: Path
) -> None:
    shutil.copytree(mutants.folder, tmp_path / "store")
    domain = replace(mutants, folder=str(tmp_path / "store"))
    task = next(domain.tasks(Split.EVALUATION, 0))
    path = tmp_path / "store" / "tasks" / f"{payload_digest(task.payload)}.json"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6") + b" ")
    with pytest.raises(EnvironmentFailedError, match="was changed; make it again"):
        domain.make().reset(0, task.payload)
    with pytest.raises(EnvironmentFailedError, match="is no payload of a SWE task"):
        domain.make().reset(0, "{}")


def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sources is empty"):
        SweMutants()
    with pytest.raises(SettingsError, match=r"SweMutants\.max_turns=0"):
        SweMutants(sources="x", max_turns=0)
    bare = written(tmp_path / "bare", {"marks.py": "def f():\n    return 1\n"})
    with pytest.raises(SettingsError, match="no test of it passes in a box: none was found"):
        SweMutants(sources=str(bare), folder=str(tmp_path)).prepared()
    with pytest.raises(SettingsError, match="the distribution 'no-such-package' is not installed"):
        SweMutants(sources=str(bare), packages=("no-such-package",)).spec()


@pytest.mark.whole
@pytest.mark.parametrize("name", ["inflection", "toolz"])
def test_packages_of_the_registry_give_tasks_that_hold(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
        "--no-binary", ":all:", "-d", str(tmp_path), name,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = list(tmp_path.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        pytest.skip(f"pip cannot download {name}")
    domain = SweMutants(
        sources=str(found[0]), per_package=3, folder=str(tmp_path / "s"), held_out_fraction=0.0
    )
    tasks = list(domain.tasks(Split.EVALUATION, 0))
    assert len(tasks) == 3
    for task in tasks:
        assert played(domain.make(), task.payload, domain.solutions(task)["gold"])[0] == 1.0
        reward, info = played(domain.make(), task.payload, [SUBMIT])
        assert (reward, info["success"], kinds(info)) == (0.0, False, set())
