"""NeMo Gym over HTTP, against a server of our own that answers rightly and wrongly."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollart_flow import Secret
from rollart_flow.envs import NemoGym
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.loop import LoopEnvironment
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.types import Action, Split, ToolCall
from tests.envs.foreign.nemo_gym_server import CounterFront, CounterRoutes, Wrong, counting

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "description": "Add."}
ROW: dict[str, Any] = {
    "id": 1,
    "number": 3,
    "goal": 6,
    "responses_create_params": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Reach six."}]},
        ],
        "tools": [ADD],
    },
}
Test = Callable[[LoopEnvironment, CounterFront], Awaitable[None]]


def calls(*calls: tuple[str, dict[str, Any]]) -> Action:
    return Action("", None, tuple(ToolCall(str(n), *call) for n, call in enumerate(calls)))


def run(
    test: Test,
    wrong: dict[str, Wrong] | None = None,
    row: dict[str, Any] = ROW,
    timeout_s: float = 30.0,
    **settings: Any,
) -> CounterFront:
    async def body(server: CounterFront) -> None:
        domain = NemoGym(server.url, rows=(row,), **settings)
        environment = open_environment(domain, timeout_s=timeout_s)
        assert isinstance(environment, LoopEnvironment)
        try:
            await environment.start()
            await environment.reset(0, next(domain.tasks(Split.EVALUATION, 0)).payload)
            await test(environment, server)
        finally:
            await environment.close()

    with counting(wrong) as server:
        asyncio.run(body(server))
        return server


def test_calls_go_to_the_routes_of_the_tools_and_the_answer_is_verified() -> None:
    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        assert environment.tools is not None
        assert [tool.name for tool in environment.tools] == ["add"]
        answer = await environment.step(calls(("add", {"n": 1}), ("add", {"n": "x"})))
        texts = [message.text for message in answer.observation]  # type: ignore[union-attr]
        assert texts == ['{"number": 4}', '{"detail": "n is no integer"}']
        assert answer[1:4] == (0.0, False, False)
        await environment.step(calls(("add", {"n": 2})))
        answer = await environment.step(Action("Six."))
        assert answer[:4] == ("", 1.0, True, False)
        assert answer.info == {"right": True, "success": True}

    server = run(test, success="right")
    path, body, _ = server.seen[-1]
    assert path == "/verify"
    kinds = [item["type"] for item in body["response"]["output"]]
    assert kinds == [
        "function_call", "function_call", "function_call_output", "function_call_output",
        "function_call", "function_call_output", "message",
    ]  # fmt: skip


def test_each_episode_has_a_session_of_its_own() -> None:
    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        await environment.step(calls(("add", {"n": 3})))
        task = next(NemoGym(server.url, rows=(ROW,)).tasks(Split.EVALUATION, 0)).payload
        await environment.reset(0, task)
        assert (await environment.step(Action("Six.")))[1] == 0.0
        assert sorted(server.sessions.values()) == [3, 6]

    run(test)


def test_routes_that_are_no_tools_cannot_be_called() -> None:
    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        answer = await environment.step(calls(("verify", {"goal": 3}), ("../verify", {})))
        texts = [message.text for message in answer.observation]  # type: ignore[union-attr]
        assert texts == ["error: verify is no tool", '{"detail": "Not Found"}']

    server = run(test)
    assert "/verify" not in {path for path, _, _ in server.seen}


def test_the_last_turn_is_verified_and_truncated() -> None:
    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        answer = await environment.step(calls(("add", {"n": 3})))
        assert answer[1:4] == (1.0, False, True)

    run(test, max_turns=1)


def refuse(status: int, answer: Any, **headers: str) -> Wrong:
    def wrong(routes: Any) -> None:
        routes.reply(status, answer, **headers)

    return wrong


def closed(routes: Any) -> None:
    routes.close_connection = True


def endless(routes: CounterRoutes) -> None:
    routes.reply(200, b"x" * (17 << 20))


WRONG: dict[str, tuple[str, Wrong, str]] = {
    "a status": ("/seed_session", refuse(500, "a\nb"), "/seed_session answered with status 500"),
    "a redirect": ("/seed_session", refuse(307, "", Location="http://127.0.0.1:9/"), "status 307"),
    "no JSON": ("/verify", refuse(200, b"<html>"), "answered no JSON object: '<html>'"),
    "a list": ("/verify", refuse(200, [1.0]), "answered no JSON object"),
    "no reward": ("/verify", refuse(200, {}), "the answer of /verify has NoneType as reward"),
    "NaN": ("/verify", refuse(200, {"reward": float("nan")}), "the reward nan"),
    "a text": ("/verify", refuse(200, {"reward": "1"}), "has str as reward"),
    "a closed socket": ("/verify", closed, "cannot be reached: RemoteProtocolError"),
    "too much": ("/verify", endless, "answered with over 16777216 bytes"),
    "a tool that fails": ("/add", refuse(500, "no memory"), "/add answered with status 500"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_one_line(case: str) -> None:
    path, wrong, said = WRONG[case]

    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        await environment.step(calls(("add", {"n": 1})))
        await environment.step(Action("Six."))

    with pytest.raises(EnvironmentFailedError) as raised:
        run(test, {path: wrong})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 500


def test_a_slow_answer_is_late() -> None:
    def slow(routes: CounterRoutes) -> None:
        routes.server.release.wait()
        routes.close_connection = True

    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        with pytest.raises(EnvironmentTimeoutError, match=r"step: no answer within 0\.5 s"):
            await environment.step(Action("Six."))

    run(test, {"/verify": slow}, timeout_s=0.5)


def test_a_token_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_TOKEN", "abcd-very-secret")

    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        with pytest.raises(EnvironmentFailedError) as raised:
            await environment.step(Action("Six."))
        assert "secret" not in str(raised.value)

    wrong = {"/verify": refuse(403, "abcd-very-secret is not allowed")}
    server = run(test, wrong, token=Secret.from_env("NEMO_TOKEN"))
    assert {token for _, _, token in server.seen} == {"Bearer abcd-very-secret"}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (None, "has no column responses_create_params"),
        ({"input": []}, "has no input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "only text is taken"),
        ({"input": [{"type": "function_call"}]}, "gave no messages"),
        ({"input": "Go.", "tools": [{"type": "web_search"}]}, "are no functions"),
    ],
)
def test_a_row_of_another_form_is_one_line(params: Any, said: str) -> None:
    async def test(environment: LoopEnvironment, server: CounterFront) -> None:
        raise AssertionError("the row was taken")

    with pytest.raises(EnvironmentFailedError, match=said):
        run(test, row={**ROW, "responses_create_params": params})


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="must begin with http:// or https://"):
        NemoGym("ws://127.0.0.1", rows=(ROW,))
    with pytest.raises(SettingsError, match="rows is empty"):
        NemoGym("http://127.0.0.1")
    domain = NemoGym("https://gym.example.org/", rows=(ROW,), revision="0.4.0")
    assert (domain.name, domain.version) == ("nemo-gym", "nemo-gym/1/0.4.0")
