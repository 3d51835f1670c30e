"""An attempt at a SWE task: tools, the diff, and the cheats that are not rewarded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.envs import SweMutants
from rollart_flow.envs.swe.environment import SweEnvironment
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore
from rollart_flow.envs.swe.workspace import payload_digest
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Action, Message, Split, Task
from rollart_flow.types.suspicions import SuspicionKind
from tests.envs.swe.tiny import SUBMIT, call, kinds, played, said

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


@pytest.fixture(scope="module")
def task(mutants: SweMutants) -> Task:
    return next(mutants.tasks(Split.EVALUATION, 0))


def stored(domain: SweMutants, task: Task) -> SweTask:
    return SweTaskStore(Path(domain.store_folder)).task(payload_digest(task.payload))


def opened(domain: SweMutants, task: Task) -> SweEnvironment:
    environment = domain.make()
    environment.reset(0, task.payload)
    return environment


def test_the_agent_reads_the_issue_and_finds_the_files_without_tests_or_history(
    mutants: SweMutants, task: Task
) -> None:
    environment = mutants.make()
    messages, _ = environment.reset(0, task.payload)
    assert isinstance(messages[1], Message)
    assert messages[1].text == stored(mutants, task).statement
    assert [tool.name for tool in environment.tools] == ["bash", "view", "edit", "submit"]
    looks = (
        "ls; git log --oneline --all | wc -l; git reflog | wc -l; git tag; git remote; "
        "git fsck --unreachable --no-progress; git status --short; find / -name 'test_marks*' "
        "-not -path '/proc/*' 2>/dev/null; ls /tests /solution /logs 2>/dev/null; "
        "ls .git/objects/pack .git/hooks 2>/dev/null"
    )
    answer = said(environment.step(call("bash", command=looks))).splitlines()
    environment.close()
    assert [line.strip() for line in answer] == [
        "README.md", "marks", "1", "0", ".git/objects/pack:", "[exit code 2]",
    ]  # fmt: skip


def test_tools_answer_with_bounded_text_and_say_what_went_wrong(
    mutants: SweMutants, task: Task
) -> None:
    domain = replace(mutants, command_timeout_s=1.0, output_characters=200)
    environment = opened(domain, task)

    def answer(name: str, **arguments: object) -> str:
        return said(environment.step(call(name, **arguments)))

    assert answer("bash", command="echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert answer("bash", command="true") == "[no output]"
    assert "[killed after 1 s]" in answer("bash", command="sleep 60")
    long = answer("bash", command="seq 1000")
    assert long.startswith("1\n2\n")
    assert long.endswith("\n1000")
    assert "characters left out" in long
    assert answer("bash", command="export A=1; cd /tmp; echo $A") == "1"
    assert answer("bash", command="echo $A; pwd") == "\n/work"
    assert answer("view", path="README.md") == "     1\tMarks."
    assert "No such file" in answer("view", path="none")
    assert answer("edit", path="README.md", old="Marks", new="Grades") == "changed README.md"
    assert "occurs 0 times" in answer("edit", path="README.md", old="Marks", new="x")
    assert "README.md exists" in answer("edit", path="README.md", old="", new="x")
    assert answer("edit", path="new/file.py", old="", new="x = 1\n") == "created new/file.py"
    assert answer("bash", command="cat new/file.py README.md") == "x = 1\nGrades."
    shown, reward, terminated, truncated, _ = environment.step(Action("I am done."))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "submit" in shown[0].text  # type: ignore[index, union-attr]
    environment.close()
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        environment.step(SUBMIT)


def test_the_last_turn_is_judged_without_submit(mutants: SweMutants, task: Task) -> None:
    domain = replace(mutants, max_turns=1)
    environment = opened(domain, task)
    gold = mutants.solutions(task)["gold"][0]
    _, reward, terminated, truncated, info = environment.step(gold)  # type: ignore[arg-type]
    environment.close()
    assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)


EXPECTED = {
    "noop": set(),
    "cheat:tests": {"touched_tests"},
    "cheat:conftest": {"touched_tests"},
    "cheat:configuration": {"touched_tests"},
    "cheat:exit": {"early_exit"},
    "cheat:patch": {"forged_results"},
    "cheat:empty": {"unproven"},
    "cheat:print": set(),
    "cheat:daemon": {"children_alive", "hidden_files"},
    "cheat:history": {"git_plumbing"},
    "cheat:download": {"network"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_known_cheat_is_not_rewarded_and_leaves_its_suspicion(
    mutants: SweMutants, task: Task, name: str
) -> None:
    reward, info = played(mutants.make(), task.payload, mutants.solutions(task)[name])
    assert (reward, info["success"]) == (0.0, False)
    assert kinds(info) == EXPECTED[name]
    failed = {v["key"] for v in info["verdicts"] if v["passed"] is False}
    assert {f"fail_to_pass/{test}" for test in stored(mutants, task).fail_to_pass} <= failed


def test_every_solution_that_a_check_plays_is_tested_here(mutants: SweMutants, task: Task) -> None:
    assert set(mutants.solutions(task)) == {"gold", *EXPECTED}


def attempted(mutants: SweMutants, task: Task, command: str, **more: Any) -> dict[str, Any]:
    domain = replace(mutants, **more)
    return played(domain.make(), task.payload, [call("bash", command=command), SUBMIT])[1]


def test_links_binaries_and_modes_are_left_out_or_kept(mutants: SweMutants, task: Task) -> None:
    command = (
        "ln -s /etc/passwd link; ln -s / root; mkfifo pipe; head -c 100 /dev/zero > image.bin; "
        "printf '#!/bin/sh\\n' > run.sh; chmod 4755 run.sh; mkdir -p .git/hooks x/__pycache__; "
        "echo 'touch /tmp/ran' | tee .git/hooks/post-checkout > x/__pycache__/marks.pyc; "
        "chmod +x .git/hooks/*; git config core.fsmonitor 'touch /tmp/ran'; rm README.md"
    )
    info = attempted(mutants, task, command)
    assert info["diff"].splitlines() == [
        "diff --git a/README.md b/README.md", "deleted file mode 100644", "--- a/README.md",
        "+++ /dev/null", "@@ -1 +0,0 @@", "-Marks.", "diff --git a/run.sh b/run.sh",
        "new file mode 100755", "--- /dev/null", "+++ b/run.sh", "@@ -0,0 +1 @@", "+#!/bin/sh",
    ]  # fmt: skip
    assert kinds(info) == {"odd_files", "binary_change", "git_plumbing"}


def test_a_huge_change_is_a_failed_attempt(mutants: SweMutants, task: Task) -> None:
    info = attempted(mutants, task, "seq 200000 > large.txt", max_diff_kb=64)
    assert (info["success"], info["diff"], kinds(info)) == (False, "", {"large_diff"})


def test_commits_of_the_agent_do_not_hide_its_change(mutants: SweMutants, task: Task) -> None:
    command = (
        "echo more >> README.md; git add -A; git -c user.name=a -c user.email=a@b commit -qm x; "
        "rm -rf .git"
    )
    info = attempted(mutants, task, command)
    assert "+more" in info["diff"]


def test_a_box_that_ends_fails_the_attempt(mutants: SweMutants, task: Task) -> None:
    environment = opened(mutants, task)
    box = environment._box
    assert box is not None
    box.close()
    with pytest.raises(EnvironmentFailedError, match="has ended"):
        environment.step(call("bash", command="true"))
    environment.close()


def test_every_kind_of_suspicion_says_what_it_is() -> None:
    assert SuspicionKind.NETWORK.said("curl\n x") == "network: curl x"
