"""Task folders of the Harbor format: attempts, verifiers, steps, artifacts, and the hacks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.envs import HarborTasks
from rollart_flow.envs.registry import domain_of_folder
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split, Task
from tests.envs.swe.tiny import SUBMIT, call, kinds, played, said, written

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

CONFIG = """schema_version = "1.4"
[task]
name = "tests/greeting"
[environment]
network_mode = "no-network"
"""
DOCKERFILE = """FROM debian:12
ENV GREETED=world \\
    OTHER="two words"
WORKDIR /app
COPY files/ .
RUN echo "built for $GREETED" > /opt-built && mkdir -p data
"""
TEST = """mkdir -p /logs/verifier
if [ "$(cat hello.txt)" = "hello $GREETED" ] && grep -q world /opt-built; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
TASK = {
    "task.toml": CONFIG,
    "instruction.md": "Write hello and the name into hello.txt.",
    "environment/Dockerfile": DOCKERFILE,
    "environment/files/start.txt": "start\n",
    "tests/test.sh": TEST,
    "solution/solve.sh": 'echo "$WORD $GREETED" > hello.txt\n',
}


def domain_of(folder: Path, **texts: str) -> HarborTasks:
    """The domain of one task folder, with other texts for some of its files."""
    written(folder, {**TASK, "task.toml": f'{CONFIG}[solution.env]\nWORD = "hello"\n', **texts})
    return HarborTasks(str(folder), images=(("debian:12", "host"),))


def the_task(domain: HarborTasks) -> Task:
    (task,) = domain.tasks(Split.EVALUATION, 0)
    return task


def attempted(domain: HarborTasks, *commands: str) -> tuple[float, dict[str, Any]]:
    actions = [*(call("bash", command=command) for command in commands), SUBMIT]
    return played(domain.make(), the_task(domain).payload, actions)


def test_the_solution_is_rewarded_and_the_cheats_are_not(tmp_path: Path) -> None:
    domain = domain_of(tmp_path)
    task = the_task(domain)
    outcomes = {
        name: played(domain.make(), task.payload, actions)
        for name, actions in domain.solutions(task).items()
    }
    assert {name: reward for name, (reward, _) in outcomes.items()} == {
        "gold": 1.0, "noop": 0.0, "cheat:daemon": 0.0, "cheat:reward": 0.0,
    }  # fmt: skip
    info = outcomes["gold"][1]
    assert info["success"]
    assert info["diff"].splitlines()[-1] == "+hello world"
    assert info["verdicts"][0] | {"seconds": None} == {
        "key": "reward", "kind": "reward", "passed": None, "value": 1.0, "seconds": None,
        "message": None,
    }  # fmt: skip
    assert kinds(outcomes["cheat:daemon"][1]) == {"children_alive", "hidden_files"}
    assert domain.judge(task.payload, info["diff"], LocalBoxes()).success
    assert domain.judge(task.payload, "", LocalBoxes()).reward == 0.0
    assert domain.digests(task).verifier == info["verifier"]


def test_the_box_is_built_and_holds_neither_tests_nor_solution(tmp_path: Path) -> None:
    domain = domain_of(tmp_path)
    environment = domain.make()
    messages, _ = environment.reset(0, the_task(domain).payload)
    looks = "pwd; ls; echo $OTHER; cat /opt-built; ls /tests /solution /logs 2>&1 | wc -l"
    answer = said(environment.step(call("bash", command=looks)))
    environment.close()
    assert "hello.txt" in messages[1].text  # type: ignore[union-attr]
    assert answer == "/app\ndata\nstart.txt\ntwo words\nbuilt for world\n3"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("true", "the verifier wrote no /logs/verifier/reward"),
        ("echo nan > /logs/verifier/reward.txt", "'reward' is nan"),
        ("echo high > /logs/verifier/reward.txt", "reward.txt is no reward"),
        ("echo '{\"score\": 1}' > /logs/verifier/reward.json", "no key 'reward'"),
        ("echo '{\"reward\": true}' > /logs/verifier/reward.json", "'reward' is no number"),
        ("head -c 2000000 /dev/zero > /logs/verifier/reward.json", "more than the 1048576"),
        ("ln -s /proc/1/status /logs/verifier/reward.json", "reward.json is no reward"),
    ],
)
def test_a_verifier_without_a_finite_reward_fails_the_attempt(
    tmp_path: Path, script: str, reason: str
) -> None:
    with pytest.raises(EnvironmentFailedError, match=reason):
        attempted(domain_of(tmp_path, **{"tests/test.sh": script}))


def test_a_reward_by_key_has_a_verdict_for_each_key(tmp_path: Path) -> None:
    script = 'echo \'{"reward": 0.5, "style": 2}\' > /logs/verifier/reward.json'
    reward, info = attempted(domain_of(tmp_path, **{"tests/test.sh": script}))
    assert (reward, info["success"]) == (0.5, False)
    assert {v["key"]: v["value"] for v in info["verdicts"]} == {"reward": 0.5, "style": 2.0}


def test_a_verifier_that_takes_too_long_or_leaves_processes_is_told(tmp_path: Path) -> None:
    slow = domain_of(tmp_path / "a", **{
        "task.toml": f"{CONFIG}[verifier]\ntimeout_sec = 0.5\n", "tests/test.sh": "sleep 60",
    })  # fmt: skip
    with pytest.raises(EnvironmentFailedError, match=r"took over 0\.5 s"):
        attempted(slow)
    script = "sleep 60 >/dev/null 2>&1 &\necho 1 > /logs/verifier/reward.txt"
    _, info = attempted(domain_of(tmp_path / "b", **{"tests/test.sh": script}))
    assert info["suspicions"] == ["children_alive: 1 at the end of the verifier"]


def test_a_separate_verifier_gets_the_declared_artifacts_alone(tmp_path: Path) -> None:
    config = (
        """
artifacts = ["out/report.txt", { source = "/srv/logs", exclude = ["*.tmp"] }]
"""
        + CONFIG
        + """[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "pgrep sleep > /srv/logs/alive.txt"
"""
    )
    script = """
ls hello.txt 2>/dev/null && exit 1
[ "$(cat out/report.txt)" = fine ] && [ -s /srv/logs/alive.txt ] && [ ! -e /srv/logs/a.tmp ] \\
    && [ "$(cat /logs/artifacts/kept)" = kept ] && echo 1 > /logs/verifier/reward.txt
"""
    domain = domain_of(tmp_path, **{"task.toml": config, "tests/test.sh": script})
    command = (
        "mkdir -p out /srv/logs /logs/artifacts; echo fine > out/report.txt; touch hello.txt; "
        "touch /srv/logs/a.tmp; echo kept > /logs/artifacts/kept; sleep 60 >/dev/null 2>&1 &"
    )
    reward, info = attempted(domain, command)
    assert reward == 1.0
    assert kinds(info) == {"children_alive"}


STEPS = (
    CONFIG
    + """
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
"""
)


def stepped(folder: Path, strategy: str) -> HarborTasks:
    texts = {"task.toml": f'multi_step_reward_strategy = "{strategy}"\n{STEPS}'}
    for name in ("one", "two"):
        script = f"cat {name}.txt > /logs/verifier/reward.txt"
        texts |= {
            f"steps/{name}/instruction.md": f"Write {name}.txt.",
            f"steps/{name}/tests/test.sh": script,
            f"steps/{name}/solution/solve.sh": f"echo 1 > {name}.txt",
        }
    return domain_of(folder, **texts)


def test_steps_are_judged_one_after_the_other(tmp_path: Path) -> None:
    domain = stepped(tmp_path, "mean")
    task = the_task(domain)
    environment = domain.make()
    environment.reset(0, task.payload)
    environment.step(call("bash", command="echo 0.5 > one.txt"))
    shown, reward, terminated, *_ = environment.step(SUBMIT)
    assert (reward, terminated) == (0.0, False)
    assert shown[-1].text == "Write two.txt."  # type: ignore[index, union-attr]
    environment.step(call("bash", command="echo 1 > two.txt"))
    _, reward, terminated, _, info = environment.step(SUBMIT)
    environment.close()
    assert (reward, terminated, info["success"]) == (0.75, True, False)
    assert [v["key"] for v in info["verdicts"]] == ["one/reward", "two/reward"]  # type: ignore[attr-defined]
    reward, _ = played(domain.make(), task.payload, domain.solutions(task)["gold"])
    assert reward == 1.0


@pytest.mark.parametrize(("strategy", "reward"), [("mean", 0.2), ("final", 0.0)])
def test_a_step_below_its_least_reward_is_the_last_one(
    tmp_path: Path, strategy: str, reward: float
) -> None:
    assert attempted(stepped(tmp_path, strategy), "echo 0.4 > one.txt")[0] == reward


def test_a_build_that_fails_fails_the_attempt(tmp_path: Path) -> None:
    domain = domain_of(tmp_path, **{"environment/Dockerfile": "FROM host\nRUN exit 3\n"})
    with pytest.raises(EnvironmentFailedError, match=r"RUN exit 3 failed \(exit code 3\)"):
        attempted(domain)


def test_what_the_agent_removed_is_not_there_for_the_verifier(tmp_path: Path) -> None:
    script = "[ -e start.txt ] || echo 1 > /logs/verifier/reward.txt"
    domain = domain_of(tmp_path, **{"tests/test.sh": script})
    reward, info = attempted(domain, "rm start.txt")
    assert reward == 1.0
    assert "deleted file mode 100644" in info["diff"]
    assert domain.judge(the_task(domain).payload, info["diff"], LocalBoxes()).success


def test_a_health_check_is_waited_for(tmp_path: Path) -> None:
    check = "\n[environment.healthcheck]\ninterval_sec = 0.01\nretries = 3\ncommand = "
    works = "echo >> /tries; [ $(wc -l < /tries) -ge 3 ]"
    domain = domain_of(tmp_path / "a", **{"task.toml": f"{CONFIG}{check}'{works}'"})
    assert attempted(domain)[0] == 0.0
    domain = domain_of(tmp_path / "b", **{"task.toml": f"{CONFIG}{check}'false'"})
    with pytest.raises(EnvironmentFailedError, match="health check 'false' does not pass"):
        attempted(domain)


def test_a_folder_that_changes_after_it_was_read_is_refused(tmp_path: Path) -> None:
    domain = domain_of(tmp_path)
    task = the_task(domain)
    environment = domain.make()
    environment.reset(0, task.payload)
    (tmp_path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt")
    with pytest.raises(EnvironmentFailedError, match="has changed; read it again"):
        environment.step(SUBMIT)
    with pytest.raises(EnvironmentFailedError, match="has changed; read it again"):
        environment.reset(0, task.payload)
    other = json.dumps({**json.loads(task.payload), "folder": "../x"})
    with pytest.raises(EnvironmentFailedError, match="no task folder below"):
        environment.reset(0, other)


def test_a_folder_of_task_folders_has_all_of_them(tmp_path: Path) -> None:
    for number in range(6):
        config = CONFIG.replace("greeting", f"greeting-{number}")
        written(tmp_path / f"task-{number}", {**TASK, "task.toml": config})
    domain = HarborTasks(str(tmp_path), images=(("*", "host"),), held_out_fraction=0.5)
    trained = {task.task_id for task in domain.tasks(Split.EVALUATION, 0)}
    held_out = {task.task_id for task in domain.held_out(0)}
    assert len(trained | held_out) == 6
    assert not trained & held_out
    assert trained
    assert held_out
    order = replace(domain, held_out_fraction=0.0).tasks(Split.TRAIN, 0)
    assert len({next(order).task_id for _ in range(6)}) == 6


def test_a_folder_is_known_as_one_of_tasks(tmp_path: Path) -> None:
    domain_of(tmp_path / "task", **{"environment/Dockerfile": "FROM host\n"})
    for folder in (tmp_path, tmp_path / "task"):
        domain = domain_of_folder(folder)
        assert isinstance(domain, HarborTasks)
        assert the_task(domain).task_id == "harbor/tests/greeting"
    with pytest.raises(SettingsError, match="no domain reads this folder"):
        domain_of_folder(tmp_path / "task" / "tests")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"environment/docker-compose.yaml": ""}, "needs several containers"),
        ({"environment/Dockerfile": "FROM a\nFROM b"}, "line 2: FROM is not supported"),
        (
            {"environment/Dockerfile": "FROM a\nCOPY --from=b x y"},
            "COPY: it takes sources and a target, without options",
        ),
        ({"environment/Dockerfile": "FROM a\nVOLUME /x"}, "VOLUME is not supported"),
        ({"environment/Dockerfile": "FROM other:1"}, "needs the image 'other:1'; add one"),
        ({"task.toml": CONFIG + 'docker_image = "x:1"'}, "needs the image 'x:1'"),
        ({"task.toml": CONFIG + "gpus = 1"}, "needs a GPU"),
        ({"task.toml": CONFIG + 'os = "windows"'}, "needs windows"),
        ({"task.toml": CONFIG + 'mcp_servers = [{name = "x"}]'}, "needs MCP servers"),
        ({"task.toml": CONFIG + '[agent]\nuser = "me"'}, "names a user for the agent"),
        ({"task.toml": CONFIG + "[verifier.environment]"}, "environment of its own"),
        ({"task.toml": CONFIG + "[agent]\nlimit = 1"}, r"agent\.limit: Extra inputs"),
        ({"task.toml": 'schema_version = "2.0"'}, "schema_version"),
        ({"task.toml": "[task"}, "no TOML"),
        ({"task.toml": 'artifacts = ["../x"]'}, "has '..'"),
        ({"task.toml": CONFIG + '[environment.env]\nK = "${NOT_SET_HERE}"'}, "NOT_SET_HERE"),
    ],
)
def test_what_a_box_cannot_do_is_refused_in_one_line(
    tmp_path: Path, texts: dict[str, str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason) as caught:
        the_task(domain_of(tmp_path, **texts))
    assert "\n" not in str(caught.value)


def test_missing_parts_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="folder is empty"):
        HarborTasks()
    with pytest.raises(SettingsError, match="is no task folder, and has none"):
        the_task(HarborTasks(str(tmp_path / "none")))
    domain = domain_of(tmp_path)
    shutil.rmtree(tmp_path / "tests")
    with pytest.raises(SettingsError, match=r"test\.sh is missing"):
        the_task(domain)


def test_old_spellings_and_sizes_are_read(tmp_path: Path) -> None:
    config = (
        'version = "1.0"\n[environment]\nmemory = "1G"\nstorage = "64M"\nallow_internet = true\n'
    )
    domain = domain_of(tmp_path, **{"task.toml": config})
    spec = domain.box(the_task(domain).payload)
    assert spec is not None
    assert (spec.limits.memory_mb, spec.limits.disk_mb, spec.workdir) == (1024, 64, "/app")
    with pytest.raises(SettingsError, match="asks for a network"):
        the_task(replace(domain, refuses_network=True))


def test_variables_of_the_host_are_taken_only_where_a_task_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMED", "given")
    config = CONFIG + '[verifier.env]\nA = "${NAMED}"\nB = "${MISSING_ONE:-default}"\n'
    script = '[ "$A $B" = "given default" ] && echo 1 > /logs/verifier/reward.txt'
    domain = domain_of(tmp_path, **{"task.toml": config, "tests/test.sh": script})
    assert attempted(domain)[0] == 1.0
