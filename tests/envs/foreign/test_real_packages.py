"""The packages themselves: OpenEnv, NeMo Gym, SkyRL-Gym and verifiers, with their own examples."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.envs import NemoGym, OpenEnv, SkyRLGym, Verifiers
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Action, Split, ToolCall
from tests.envs.foreign.venvs import newer_python, served, venv

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

TASKSETS = Path(__file__).parent / "tasksets"


def call(name: str, **arguments: Any) -> Action:
    return Action("", None, (ToolCall("1", name, arguments),))


def texts(observation: Any) -> list[str]:
    return [message.text for message in observation]


def test_openenv_echoes_over_its_own_server() -> None:
    with served(venv("openenv==0.10.0"), "openenv_server.py", "echo") as port:
        url = f"ws://127.0.0.1:{port}/ws"
        domain = OpenEnv(url, action="message", success="metadata.right", wait_s=1)
        echo = domain.make()
        assert echo.reset(17, '{"split": "train"}')[0] == "17 [('split', 'train')]"
        assert echo.step("hello")[:4] == ("hello", 0.0, False, False)
        answer = echo.step("17")
        assert answer[1:4] == (1.0, True, False)
        assert answer[4] == {"right": True, "success": True}
        with pytest.raises(EnvironmentFailedError, match="EXECUTION_ERROR: no such word"):
            echo.step("raise")
        other, third, wrong = OpenEnv(url).make(), domain.make(), OpenEnv(url, action="m").make()
        other.reset(1, "{}")
        assert "message: Field required" in str(other.step('{"text": "x"}')[0])
        wrong.reset(1, "{}")
        with pytest.raises(EnvironmentFailedError, match="CAPACITY_REACHED: Server at capacity"):
            third.reset(1, "{}")
        with pytest.raises(EnvironmentFailedError, match="see the setting action"):
            wrong.step("x")
        for environment in (echo, other, wrong, third):
            environment.close()


def test_openenv_lists_and_calls_the_tools_of_its_own_server() -> None:
    with served(venv("openenv==0.10.0"), "openenv_server.py", "tools") as port:
        sums = OpenEnv(f"ws://127.0.0.1:{port}/ws", tools=True, show="{metadata[text]}").make()
        assert sums.reset(1, "{}")[0] == "Add."
        (tool,) = sums.tools
        assert (tool.name, tool.description) == ("add", "Add two numbers.")
        assert texts(sums.step(call("add", left=1, right=2))[0]) == ["3"]
        assert "error" in texts(sums.step(call("add", left="x"))[0])[0]
        assert sums.step(Action("three"))[1:4] == (0.0, True, False)
        sums.close()


@pytest.fixture(scope="module")
def nemo() -> Path:
    return venv("nemo-gym==0.4.0", base=newer_python())


def test_nemo_gym_counts_in_a_session(nemo: Path) -> None:
    name = "example_session_state_mgmt"
    (folder,) = nemo.parent.parent.glob("lib/python3*/site-packages/resources_servers")
    with served(nemo, "nemo_gym_server.py", name) as port:
        rows = str(folder / name / "data" / "example.jsonl")
        domain = NemoGym(f"http://127.0.0.1:{port}", rows=rows)
        task = next(domain.tasks(Split.EVALUATION, 0)).payload
        row = json.loads(task)
        counter = domain.make()
        counter.reset(0, task)
        assert [tool.name for tool in counter.tools] == ["increment_counter", "get_counter_value"]
        missing = row["expected_count"] - row["initial_count"]
        counter.step(call("increment_counter", count=missing))
        (shown,) = texts(counter.step(call("get_counter_value"))[0])
        assert json.loads(shown) == {"count": row["expected_count"]}
        assert counter.step(Action("done"))[1] == 1.0
        counter.reset(0, task)
        assert counter.step(Action("done"))[1] == 0.0
        counter.close()


def test_skyrl_gym_scores_an_answer_and_asks_again() -> None:
    python = str(venv("skyrl-gym==0.4.0"))
    prompt = [{"role": "user", "content": "What is 1 + 1?"}]
    row: dict[str, Any] = {"prompt": prompt, "reward_model": {"ground_truth": "2"}}
    domain = SkyRLGym("aime", python=python, rows=(row,), success="acc")
    assert domain.version == "skyrl-gym/0.4.0/aime"
    task = next(domain.tasks(Split.EVALUATION, 0)).payload
    aime = domain.make()
    for text, reward in (("Answer: 2", 1.0), ("Answer: 3", -1.0)):
        aime.reset(0, task)
        assert aime.step(text)[1:4] == (reward, True, False)
    aime.close()
    row = {"prompt": prompt, "reward_spec": {"ground_truth": "2"}, "extra_info": {"max_turns": 3}}
    domain = SkyRLGym("gsm8k_multi_turn", python=python, rows=(row,))
    turns = domain.make()
    turns.reset(0, next(domain.tasks(Split.EVALUATION, 0)).payload)
    assert "#### ANSWER" in texts(turns.step("hm")[0])[0]
    answer = turns.step("#### 2")
    assert answer[1:4] == (1.0, True, False)
    assert answer[4]["metrics"] == {"steps": 2}
    turns.close()


def test_verifiers_scores_conversations_with_tools() -> None:
    python = str(venv("verifiers==0.4.0"))
    settings: dict[str, Any] = {"python": python, "count": 3, "config": {"size": 3}}
    domain = Verifiers(str(TASKSETS / "sums.py"), success="right", max_turns=4, **settings)
    assert domain.version == "verifiers/0.4.0/sums"
    task = list(domain.tasks(Split.EVALUATION, 0))[1].payload
    sums = domain.make()
    shown, _ = sums.reset(0, task)
    assert texts(shown) == ["Answer with a number.", "1+2="]
    assert [tool.name for tool in sums.tools] == ["add"]
    assert texts(sums.step(call("add", numbers=[1, 2]))[0]) == ["3"]
    assert "too many numbers" in texts(sums.step(call("add", numbers=[1, 2, 3]))[0])[0]
    answer = sums.step(Action("3", "One and two are three."))
    assert answer[1] == pytest.approx(1.1)
    assert answer[2:4] == (True, False)
    assert answer[4] == {
        "rewards": {"right": 1.0, "called": 0.1}, "metrics": {"turns": 3.0}, "success": True
    }  # fmt: skip
    sums.reset(0, task)
    for _ in range(2):
        sums.step(call("add", numbers=[1, 2]))
    assert sums.step(call("add", numbers=[1, 2]))[2:4] == (True, False)  # its @stop
    with pytest.raises(EnvironmentFailedError, match="loads 3 tasks; there is none at index 9"):
        sums.reset(0, '{"index": 9}')
    sums.close()


@pytest.mark.parametrize(
    ("taskset", "said"),
    [
        ("judged.py", "needs a runtime for its reward ran"),
        ("intercepted.py", "needs to see each request, by @intercept"),
        ("nothing", "taskset 'nothing' not found"),
    ],
)
def test_what_verifiers_needs_besides_is_refused_in_one_line(taskset: str, said: str) -> None:
    place = TASKSETS / taskset
    name = str(place) if place.exists() else taskset
    domain = Verifiers(name, python=str(venv("verifiers==0.4.0")), count=1)
    refused = domain.make()
    with pytest.raises(EnvironmentFailedError, match=said) as raised:
        refused.reset(0, next(domain.tasks(Split.EVALUATION, 0)).payload)
    assert "\n" not in str(raised.value)
    refused.close()
