"""Requests to a chat server: retries, errors, and a key that is never shown."""

import json
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rollart_flow.pipeline.described import describe
from rollart_flow.rewards import ChatCompletions, Judge
from rollart_flow.rewards.completions import wait_s
from tests.rewards.chat_server import ANSWERED, ChatServer, Reply, judged, one_error, refused, said

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
KEY = "sk-test-0123456789"


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
