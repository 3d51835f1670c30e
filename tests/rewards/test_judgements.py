"""The cache of judgements: equal content is judged once."""

import asyncio
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.rewards import ChatCompletions, Judge, Judgements
from rollart_flow.rewards.judge import JudgeReply, content_key
from tests.builders import answered
from tests.rewards.chat_server import ANSWERED, ChatServer, judged, said


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
    kept, dropped, newest = (JudgeReply(key, "m", 1.0, "1") for key in "abc")
    cache.put(kept)
    cache.put(dropped)
    assert cache.get("a") == kept
    cache.put(newest)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (kept, None, newest)
    assert content_key("a", "bc") != content_key("ab", "c")
    assert repr(Judgements(tmp_path)) == f"Judgements(folder={str(tmp_path)!r}, size=4096)"
    with pytest.raises(SettingsError, match="at least 1"):
        Judgements(size=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    materialize(Policy.tiny(hidden=32, max_context=512), folder)
    return folder
