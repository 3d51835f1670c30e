"""A judge over a real socket and on a real engine: what it asks, takes for a score, and caches."""

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.engines.completions import EngineCompletions, PolicyCompletions
from rollart_flow.engines.registry import build_engine
from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.models.policy import Policy, load_codec, materialize
from rollart_flow.pipeline.settings import describe
from rollart_flow.rewards import (
    ChatCompletions,
    Judge,
    Judgements,
    Part,
    compose,
    exact,
)
from rollart_flow.rewards.completions import wait_s
from rollart_flow.rewards.judgements import Judgement, content_key
from rollart_flow.rewards.score import score
from rollart_flow.types import Reason, Sampling, Trajectory
from tests.builders import answered
from tests.rewards.chat_server import ChatServer, Reply, chat_server, refused, said

ANSWERED = answered("first", "the {task} is <answer>7</answer>", problem="3+4=")
NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
KEY = "sk-test-0123456789"


def judged(
    replies: Sequence[Reply],
    scenario: Callable[[ChatServer], Awaitable[None]],
) -> ChatServer:
    """Run a scenario beside a server with a script."""

    async def main() -> ChatServer:
        async with chat_server(replies) as server:
            await asyncio.wait_for(scenario(server), 30)
        return server

    return asyncio.run(main())


def one_error(*replies: Reply, **settings: Any) -> str:
    """What is wrong with a judgement after these replies."""
    errors = []

    async def scenario(server: ChatServer) -> None:
        through = ChatCompletions(server.url, "m", backoff_s=0.001, attempts=2, **settings)
        with pytest.raises(RewardFailedError) as raised:
            await Judge(through=through)(ANSWERED)
        errors.append(str(raised.value))

    judged(replies, scenario)
    return errors[0]


def test_it_asks_for_a_score_at_temperature_0_and_takes_the_last_line() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m", prompt="{task} {answer} {x}", low=-1, high=10)
        assert await judge(ANSWERED) == 7.5

    server = judged([said("Well.\nScore: 7.5\n")], scenario)
    assert server.paths == ["/v1/chat/completions"]
    assert server.keys == [None]
    (body,) = server.bodies
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert server.prompts == [
        '{"problem": "3+4="} the {task} is <answer>7</answer> {x}\n\n'
        "End with one line of the form `Score: N`, where N is a number from -1 to 10."
    ]


def test_the_prompt_may_show_the_marked_answer_or_all_turns() -> None:
    async def scenario(server: ChatServer) -> None:
        where = ChatCompletions(f"{server.url}/chat/completions?api-version=1", "m")
        assert await Judge(through=where, prompt="[{answer}]", inside="answer")(ANSWERED) == 1
        assert await Judge(through=where, prompt="[{transcript}]")(ANSWERED) == 0

    server = judged([said("1"), said("score: 0")], scenario)
    assert server.paths == ["/v1/chat/completions?api-version=1"] * 2
    assert server.prompts[0].startswith("[7]")
    assert server.prompts[1].startswith(
        "[<observation>coin</observation>\n<action>first</action>\n<observation>coin</observation>"
    )


def test_no_answer_is_the_lowest_score_and_nobody_is_asked() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m", low=-1, inside="absent")
        assert await judge(ANSWERED) == -1
        assert await judge(answered()) == -1

    judged([], scenario)


@pytest.mark.parametrize(
    "reply",
    ["", "I like it", "Score: 1.01", "Score: -0.1", "Score: nan", "0.5 or 1", "Score: 1\nok"],
)
def test_anything_but_a_score_in_the_range_is_an_error(reply: str) -> None:
    error = one_error(said(reply))
    last = reply.split("\n")[-1]
    assert error == (
        f"judge: the last line of the answer is {last!r}; it must be `Score: N` with N from 0 to 1"
    )


def test_what_passes_is_asked_again_and_retry_after_is_obeyed() -> None:
    async def scenario(server: ChatServer) -> None:
        # an hour of backoff: only the server's word lets it pass
        slow = ChatCompletions(server.url, "m", backoff_s=3600)
        assert await Judge(through=slow)(ANSWERED) == 1
        quick = ChatCompletions(server.url, "m", backoff_s=0.001)
        assert await Judge(through=quick)(ANSWERED) == 1

    obeyed = [refused(429, "slow down", "Retry-After: 0"), refused(503, "", "Retry-After: 0")]
    hung_up = Reply(0, "", hang_up=True)
    judged([*obeyed, said("1"), refused(500), hung_up, said("1")], scenario)


def test_how_long_it_waits() -> None:
    later = format_datetime(NOON + timedelta(seconds=20), usegmt=True)
    assert wait_s(0, 1.0, {"Retry-After": "7"}, NOON) == 7
    assert wait_s(0, 1.0, {"Retry-After": "9999"}, NOON) == 60
    assert wait_s(0, 1.0, {"Retry-After": later}, NOON) == 20
    assert wait_s(0, 1.0, {"Retry-After": later}, NOON + timedelta(hours=1)) == 0
    for told in ({}, {"Retry-After": "soon"}, {"Retry-After": "-1"}):
        assert 3.0 <= wait_s(2, 1.0, told, NOON) <= 4.0
    assert 45 <= wait_s(50, 1.0, {}, NOON) <= 60


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([refused(400, "no such model")], "answered: status 400 'no such model'"),
        ([refused(302)], "status 302"),
        ([refused(500), refused(500, "broken")], "status 500 'broken'"),
        ([Reply(0, "", hang_up=True)] * 2, "RemoteProtocolError"),
        ([Reply(200, "<html>")], "no chat completion but '<html>'"),
        ([Reply(200, '{"choices": []}')], "no chat completion but"),
        ([Reply(200, '{"choices": [{"message": {"content": null}}]}')], "no chat completion"),
        ([Reply(200, "[1]")], "no chat completion"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error(replies: list[Reply], message: str) -> None:
    error = one_error(*replies)
    assert error.startswith("judge: m at http://127.0.0.1:")
    assert message in error


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")

    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m", key_variable="JUDGE_KEY")
        assert await judge(ANSWERED) == 1
        for told in (repr(judge), json.dumps(describe(judge)), str(pickle.dumps(judge))):
            assert "JUDGE_KEY" in told
            assert KEY not in told

    assert judged([said("1")], scenario).keys == [f"Bearer {KEY}"]
    for status in (400, 401, 403):
        error = one_error(refused(status, f"bad key {KEY}"), key_variable="JUDGE_KEY")
        assert KEY not in error
        assert f"status {status}" in error


@pytest.mark.parametrize(
    ("value", "message"),
    [("", "JUDGE_KEY is not set"), ("two words", "JUDGE_KEY holds no API key")],
)
def test_a_key_that_is_none_is_said_without_showing_it(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", value)
    error = one_error(key_variable="JUDGE_KEY")
    assert message in error
    assert not value or value not in error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either through=..., or url=... and model=..."),
        ({"model": "m"}, "give either through"),
        ({"url": "http://a", "model": ""}, "model is empty"),
        ({"url": "a/v1", "model": "m"}, "must be http(s)://host"),
        ({"url": "http://me:secret@a", "model": "m"}, "the url holds a user or password"),
        ({"url": "http://a?api-key=secret", "model": "m"}, "'api-key', which looks secret"),
        ({"url": "http://a", "model": "m", "prompt": "{task}"}, "neither {answer} nor"),
        ({"url": "http://a", "model": "m", "low": 1.0}, "the range is 1.0 to 1.0"),
        ({"url": "http://a", "model": "m", "inside": "<a>"}, "inside is '<a>'"),
        ({"through": ChatCompletions("http://a", "m"), "model": "n"}, "give either through"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Judge(**settings)
    assert message in str(raised.value)
    assert "secret@" not in str(raised.value)
    with pytest.raises(SettingsError, match="attempts is 0"):
        ChatCompletions("http://a", "m", attempts=0)


def test_equal_content_is_judged_once_and_any_other_anew() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m")
        assert await judge(ANSWERED) == 1
        assert await judge(replace(ANSWERED, trajectory_id="other")) == 1
        assert await judge(answered("other", problem="3+4=")) == 0
        assert await replace(judge, prompt="Mind the units. {answer}")(ANSWERED) == 0.5
        other = replace(judge, through=ChatCompletions(server.url, "other"))
        assert await other(ANSWERED) == 0.25

    server = judged([said(text) for text in ("1", "0", "0.5", "0.25")], scenario)
    assert [body["model"] for body in server.bodies] == ["m", "m", "m", "other"]


def test_equal_content_at_the_same_time_is_judged_once() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m")
        group = [replace(ANSWERED, trajectory_id=f"t{i}") for i in range(4)]
        # the first answer is no score: its own error, and the next one asks again
        scores = await asyncio.gather(*map(judge, group), return_exceptions=True)
        assert isinstance(scores[0], RewardFailedError)
        assert scores[1:] == [1, 1, 1]

    judged([said("hm"), said("1")], scenario)


def test_a_judgement_that_failed_is_not_kept() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m")
        with pytest.raises(RewardFailedError):
            await judge(ANSWERED)
        assert await judge(ANSWERED) == 1

    judged([said("hm"), said("1")], scenario)


def test_judgements_in_a_folder_outlive_the_process(tmp_path: Path) -> None:
    async def scenario(server: ChatServer) -> None:
        where = ChatCompletions(server.url, "m")
        judge = Judge(through=where, cache=Judgements(tmp_path / "judged"))
        assert await judge(ANSWERED) == 1
        assert await pickle.loads(pickle.dumps(judge))(ANSWERED) == 1
        (file,) = (tmp_path / "judged").iterdir()
        for damage in ("", "[]", file.read_text()[:-9], file.read_text().replace("1.0", "NaN")):
            file.write_text(damage)
            fresh = Judge(through=where, cache=Judgements(tmp_path / "judged"))
            assert await fresh(ANSWERED) == 1
            assert json.loads(file.read_text())["score"] == 1.0
        assert [found.name for found in (tmp_path / "judged").iterdir()] == [file.name]

    judged([said("1")] * 5, scenario)


def test_memory_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = Judgements(size=2)
    kept, dropped, newest = (Judgement(key, "m", 1.0, "1") for key in "abc")
    cache.put(kept)
    cache.put(dropped)
    assert cache.get("a") == kept
    cache.put(newest)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (kept, None, newest)
    assert content_key("a", "bc") != content_key("ab", "c")
    assert repr(Judgements(tmp_path)) == f"Judgements(folder={str(tmp_path)!r}, size=4096)"
    with pytest.raises(SettingsError, match="at least 1"):
        Judgements(size=0)


def test_a_judge_is_a_reward_and_a_part_of_one() -> None:
    results: list[Trajectory] = []

    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m")
        reward = compose(exact("7", inside="answer"), Part("judge", judge, cap=0.2))
        results.append(await score(ANSWERED, reward))
        results.append(await score(answered("other"), judge))

    judged([said("Score: 1"), said("hm")], scenario)
    assert results[0].reward == pytest.approx(1.2)
    assert results[0].reward_parts == {"outcome": 1.0, "judge": 0.2, "process": 0.2}
    assert results[1].reason is Reason.REWARD_ERROR
    assert "it must be `Score: N`" in (results[1].error or "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    materialize(Policy.tiny(hidden=32, max_context=512), folder)
    return folder


def test_any_engine_can_judge(model: Path) -> None:
    codec = load_codec(model)
    one_digit = Sampling(temperature=0, max_tokens=1, allowed_token_ids=codec.encode("0123456789"))
    policy = Policy.from_pretrained(model, max_context=512)

    async def main() -> None:
        engine = build_engine(policy, str(model), seed=0)
        running = EngineCompletions(engine, codec, "tiny", one_digit)
        lazy = PolicyCompletions(policy, one_digit)
        prompt = "Judge: {answer}"
        try:
            first = await Judge(through=running, prompt=prompt, high=9)(ANSWERED)
            again = Judge(through=pickle.loads(pickle.dumps(lazy)), prompt=prompt, high=9)
            assert first == await again(ANSWERED)
            assert first in range(10)
            free = replace(running, sampling=Sampling(temperature=0, max_tokens=4))
            with pytest.raises(RewardFailedError, match="it must be `Score: N`"):
                await Judge(through=free, prompt=prompt)(ANSWERED)
            with pytest.raises(RewardFailedError, match="judge: tiny: "):
                await running.complete("x" * 1000)
        finally:
            await engine.close()

    asyncio.run(main())
    with pytest.raises(SettingsError, match="made from scratch"):
        PolicyCompletions(Policy.tiny())
