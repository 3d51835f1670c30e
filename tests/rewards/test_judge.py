"""A judge over a real socket and on a real engine: what it asks, takes for a score, and caches."""

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.engines.completions import EngineCompletions, PolicyCompletions
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.rewards import ChatCompletions, Judge, Part, compose, exact
from rollart_flow.rewards.score import score
from rollart_flow.types import Reason, Sampling, Trajectory
from tests.builders import answered
from tests.rewards.chat_server import ANSWERED, ChatServer, judged, one_error, said


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
        engine = build_engine(policy, str(model), EngineOptions(seed=0))
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
