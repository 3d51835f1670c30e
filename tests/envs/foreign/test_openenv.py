"""OpenEnv over its websocket, against a server of our own that answers rightly and wrongly."""

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollart_flow import Secret
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.foreign.openenv import OpenEnv
from rollart_flow.envs.loop import LoopEnvironment
from rollart_flow.envs.registry import named_domain
from rollart_flow.errors import (
    EnvironmentFailedError,
    EnvironmentTimeoutError,
    SettingsError,
)
from rollart_flow.types import Action, Image, Split, ToolCall
from rollart_flow.types.messages import user
from tests.envs.foreign.openenv_server import Answer, CountingServer, refusal, shown


def made(url: str, timeout_s: float = 30.0, **settings: Any) -> LoopEnvironment:
    """An environment as a rollout worker opens it."""
    environment = open_environment(OpenEnv(url, **settings), timeout_s=timeout_s)
    assert isinstance(environment, LoopEnvironment)
    return environment


async def opened(url: str, timeout_s: float = 30.0, **settings: Any) -> LoopEnvironment:
    """An environment that is connected."""
    environment = made(url, timeout_s, **settings)
    await environment.start()
    return environment


def run(test: Callable[[CountingServer, str], Awaitable[None]], **settings: Any) -> CountingServer:
    async def body() -> CountingServer:
        server = CountingServer(**settings)
        async with server.served() as url:
            await test(server, url)
        return server

    return asyncio.run(body())


def test_an_episode_has_the_seed_and_the_row_and_ends_its_session() -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, success="metadata.won")
        first, _ = await environment.reset(17, '{"split": "train"}')
        assert first == "seed 17, ['seed', 'split']"
        answer = await environment.step('{"n": 7}')
        assert answer[:4] == ("over", 1.0, True, False)
        assert answer[4]["success"] is True
        assert environment.tools is None
        await environment.close()
        await environment.close()
        await server.ended.wait()

    server = run(test)
    assert [request["type"] for request in server.requests] == ["state", "reset", "step", "close"]


def test_the_text_of_a_policy_may_be_one_field_or_go_through_a_function() -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, action="n", show="Now: {text}")
        assert (await environment.reset(4, "{}"))[0] == "Now: seed 4, ['seed']"
        assert (await environment.step("4"))[1] == 1.0
        await environment.close()
        environment = await opened(
            url,
            action=lambda text: {"n": int(text) + 1},
            show=lambda observation: [user(observation["text"].upper())],
        )
        assert (await environment.reset(4, "{}"))[0] == (user("SEED 4, ['SEED']"),)
        assert (await environment.step("3"))[1] == 1.0
        await environment.close()

    run(test)


@pytest.mark.parametrize(
    ("action", "said"),
    [("left", "is no JSON"), ("[1]", "no JSON object"), ('{"m": 1}', "n: Field required")],
)
def test_a_wrong_action_is_answered_and_the_episode_goes_on(action: str, said: str) -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, invalid_reward=-0.1)
        await environment.reset(3, "{}")
        answer = await environment.step(action)
        assert said in str(answer[0])
        assert answer[1:4] == (-0.1, False, False)
        assert (await environment.step('{"n": 3}'))[1] == 1.0
        await environment.close()

    run(test)


def test_a_field_that_the_action_does_not_have_is_a_wrong_setting() -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, action="move")
        await environment.reset(3, "{}")
        with pytest.raises(EnvironmentFailedError, match="Field required; see the setting action"):
            await environment.step("left")

    run(test)


def test_tools_are_listed_and_called() -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, tools=True)
        await environment.reset(3, "{}")
        assert environment.tools is not None
        assert [tool.name for tool in environment.tools] == ["add"]
        calls = (
            ToolCall("1", "add", {"numbers": [1, 2]}),
            ToolCall("2", "nothing", {}),
            ToolCall("3", "add", {"numbers": [8, 2]}),
            ToolCall("4", "add", {"numbers": [1]}),
        )
        answer = await environment.step(Action("", None, calls))
        texts = [message.text for message in answer[0]]  # type: ignore[union-attr]
        assert texts == ["3", "error: Unknown tool", "10", "error: the episode has ended"]
        assert answer[1:4] == (0.5, True, False)
        await environment.reset(3, "{}")
        assert (await environment.step(Action("done")))[1:4] == (0.0, True, False)
        await environment.close()

    run(test)


def test_a_full_server_is_asked_again_until_it_has_a_place() -> None:
    async def test(server: CountingServer, url: str) -> None:
        first = await opened(url)
        waiting = asyncio.ensure_future(opened(url))
        await server.refused.wait()
        await first.close()
        second = await waiting
        assert (await second.reset(1, "{}"))[0]
        await second.close()
        server.capacity = 0
        with pytest.raises(EnvironmentFailedError, match="CAPACITY_REACHED: Server at capacity"):
            await opened(url, wait_s=0)

    run(test, capacity=1)


def test_many_episodes_share_one_loop() -> None:
    async def test(server: CountingServer, url: str) -> None:
        async def episode(seed: int) -> float:
            environment = await opened(url)
            await environment.reset(seed, "{}")
            answer = await environment.step(json.dumps({"n": seed % 10}))
            await environment.close()
            return float(answer[1])

        assert await asyncio.gather(*map(episode, range(100))) == [1.0] * 100

    run(test)


WRONG: dict[str, tuple[str, Callable[[], Answer], str]] = {
    "no JSON": ("reset", lambda: "{", "answered no JSON object: '{'"),
    "a list": ("reset", lambda: "[1]", "answered no JSON object"),
    "another type": ("reset", lambda: {"type": "state", "data": {}}, "where 'observation' with"),
    "no data": ("step", lambda: {"type": "observation"}, "where 'observation' with data belongs"),
    "deep": ("step", lambda: "[" * 100_000, "answered no JSON object"),
    "bytes": ("step", lambda: b"\xff\xfe", "answered no JSON object"),
    "an observation of text": (
        "step", lambda: {"type": "observation", "data": {"observation": "x", "done": False}},
        "without an observation that is an object",
    ),
    "NaN": ("step", lambda: shown({}, float("nan")), "the reward nan"),
    "an endless reward": ("step", lambda: shown({}, float("inf")), "the reward inf"),
    "a huge reward": (
        "step",
        lambda: '{"type": "observation", "data": {"observation": {}, "done": false, "reward": 1'
        + "0" * 400 + "}}",
        "int too large",
    ),
    "a reward of text": ("step", lambda: shown({}, "1"), "gave str as reward"),
    "done as a number": ("step", lambda: shown({}, 0.0, 1), "or without done"),
    "too much": ("step", lambda: "x" * (17 << 20), "closed the connection"),
    "a closed socket": ("step", lambda: None, "closed the connection"),
    "an error of the environment": (
        "step", lambda: refusal("EXECUTION_ERROR", "a\nb"), "answered EXECUTION_ERROR: a b"
    ),
    "a factory that fails": (
        "state", lambda: refusal("FACTORY_ERROR", "no memory"), "answered FACTORY_ERROR: no memory"
    ),
    "an episode that is over": ("reset", lambda: shown({}, 0.0, True), "before its first action"),
}  # fmt: skip


OF_THE_RIGHT_FORM = {"NaN", "an endless reward", "an episode that is over"}
"""Cases in which the connection is closed with the environment."""


async def _episode(environment: LoopEnvironment) -> None:
    await environment.start()
    await environment.reset(1, "{}")
    await environment.step('{"n": 1}')


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_one_line_and_closes_the_connection(case: str) -> None:
    kind, answer, said = WRONG[case]

    async def test(server: CountingServer, url: str) -> None:
        environment = made(url)
        with pytest.raises(EnvironmentFailedError) as raised:
            await _episode(environment)
        assert said in str(raised.value)
        assert str(raised.value).startswith("OpenEnv.")
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) <= 500
        if case in OF_THE_RIGHT_FORM:
            await environment.close()
        await server.ended.wait()

    run(test, answers={kind: answer})


def test_a_slow_answer_is_late_and_its_connection_is_closed() -> None:
    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, timeout_s=0.2)
        await environment.reset(1, "{}")
        with pytest.raises(EnvironmentTimeoutError, match=r"step: no answer within 0\.2 s"):
            await environment.step('{"n": 1}')
        with pytest.raises(EnvironmentFailedError, match="step before reset"):
            await environment.step('{"n": 1}')
        await environment.close()

    run(test, answers={"step": lambda: "silence"})


def test_a_redirect_is_not_followed() -> None:
    async def test(server: CountingServer, url: str) -> None:
        with pytest.raises(EnvironmentFailedError, match=r"refuses the connection: .*302"):
            await opened(url)

    run(test, answers={"redirect": lambda: None})


def test_an_image_needs_a_domain_that_shows_images() -> None:
    image = Image.of(np.zeros((8, 8, 3), np.uint8))

    async def test(server: CountingServer, url: str) -> None:
        environment = await opened(url, show=lambda _: [user(image)])
        with pytest.raises(EnvironmentFailedError, match="showed an image; set shows_images"):
            await environment.reset(1, "{}")
        await environment.close()

    run(test)


def test_a_token_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_TOKEN", "abcd-very-secret")

    async def test(server: CountingServer, url: str) -> None:
        with pytest.raises(EnvironmentFailedError) as raised:
            await opened(url, token=Secret.from_env("OPENENV_TOKEN"))
        assert server.headers[0]["Authorization"] == "Bearer abcd-very-secret"
        assert "secret" not in str(raised.value)
        assert "***" in str(raised.value)

    run(test, answers={"state": lambda: "you said abcd-very-secret"})


def test_a_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollart_flow.envs.foreign import openenv_socket
    from rollart_flow.retries import RetryPolicy

    monkeypatch.setattr(openenv_socket, "_UNREACHABLE", RetryPolicy(limit_s=0.0))
    with pytest.raises(EnvironmentFailedError, match="cannot be reached") as raised:
        asyncio.run(opened("ws://127.0.0.1:9/ws"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1/ws", "must begin with ws://"),
        ("ws:///ws", "name a host"),
        ("ws://127.0.0.1:x/ws", "name a host"),
        ("file:///etc/passwd", "must begin with ws://"),
        ("ws://me:word@host/ws", "holds a user or a password"),
    ],
)
def test_an_address_is_checked_and_a_password_not_repeated(url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as raised:
        OpenEnv(url)
    assert "word" not in str(raised.value).replace("password", "")


def test_tasks_are_rows_or_seeds(tmp_path: Path) -> None:
    one = OpenEnv("ws://127.0.0.1/ws", episodes=3)
    assert [task.task_id for task in one.tasks(Split.EVALUATION, 0)] == [
        "openenv/0", "openenv/1", "openenv/2"
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "index": 1}\n\n{"index": 2}\n')
    two = OpenEnv("ws://127.0.0.1/ws", name="other", rows=str(file), held_out_rows=({"index": 3},))
    ids = [task.task_id for task in two.tasks(Split.EVALUATION, 0)]
    assert ids[0] == "other/a"
    assert set(ids) == {task.task_id for task in islice(two.tasks(Split.TRAIN, 5), 4)}
    assert [task.task_id for task in islice(two.tasks(Split.TRAIN, 5), 9)] == [
        task.task_id for task in islice(two.tasks(Split.TRAIN, 5), 9)
    ]
    assert [json.loads(task.payload) for task in two.held_out(0)] == [{"index": 3}]
    assert pickle.loads(pickle.dumps(two)) == two


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", "", "must end with"),
        ("x.jsonl", "{", "cannot be read"),
        ("x.jsonl", "[1]", "has no rows"),
        ("x.json", "{}", "has no rows"),
    ],
)
def test_a_file_without_rows_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    domain = OpenEnv("ws://127.0.0.1/ws", rows=str(tmp_path / name))
    with pytest.raises(SettingsError, match=said):
        next(domain.tasks(Split.TRAIN, 0))


def test_rows_are_json_objects() -> None:
    with pytest.raises(SettingsError, match="holds a row that is no object"):
        OpenEnv("ws://127.0.0.1/ws", rows=("x",))  # type: ignore[arg-type]
    domain = OpenEnv("ws://127.0.0.1/ws", rows=({"a": object()},))
    with pytest.raises(SettingsError, match="a row has no JSON form"):
        next(domain.tasks(Split.TRAIN, 0))


def test_it_has_a_name_and_a_version() -> None:
    domain = named_domain('openenv("ws://127.0.0.1:8000/ws", name="echo", revision="1.2")')
    assert (domain.name, domain.version) == ("echo", "openenv/1/1.2")
    with pytest.raises(SettingsError, match="take letters, digits"):
        OpenEnv("ws://127.0.0.1/ws", name="a b")
