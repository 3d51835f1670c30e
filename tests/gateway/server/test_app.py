"""The application under virtual time: streams, heartbeats, refusals, hang-ups, an end."""

import asyncio
import json
import time
import weakref
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from rollart_flow.gateway.core.calls import (
    CallRefusedError,
    ModelAnswer,
    ModelCall,
    Refusal,
)
from rollart_flow.gateway.server.app import PARSED_IN_LOOP_BYTES, GatewayApp
from rollart_flow.gateway.server.counters import GatewayCounters
from rollart_flow.gateway.server.keys import KeyRing
from rollart_flow.gateway.server.streaming import HEARTBEAT_S, OPENING_S
from rollart_flow.simulation import run
from tests.gateway.server.asgi import AsgiRequest, chat
from tests.gateway.server.scripted import Script, ScriptedSession, after, at_once, said


class Served:
    """An application with one session."""

    def __init__(self, script: Script = at_once) -> None:
        self.keys, self.counters = KeyRing(), GatewayCounters()
        self.app = GatewayApp(self.keys, self.counters, model="policy", longest_body_bytes=1000)
        self.session = ScriptedSession(script)
        self.key = self.keys.open(self.session)


def served(test: Callable[[Served], Awaitable[None]], script: Script = at_once) -> None:
    """Run a test under virtual time."""

    async def main() -> None:
        await test(Served(script))

    run(main())


def refusing(error: Exception, seconds: float = 0.0) -> Script:
    async def answer(call: ModelCall) -> ModelAnswer:
        await asyncio.sleep(seconds)
        raise error

    return answer


def test_an_answer_at_once_is_one_piece_without_heartbeats() -> None:
    async def test(served: Served) -> None:
        request = chat(served.key, stream=True)
        await request.run(served.app)
        assert request.status == 200
        assert request.text.endswith("data: [DONE]\n\n")
        assert request.times == [0.0]
        assert served.counters.heartbeats == 0

    served(test)


def test_answers_tell_when_their_request_came() -> None:
    async def test(served: Served) -> None:
        before = int(time.time())
        request = chat(served.key)
        await request.run(served.app)
        assert before <= json.loads(request.text)["created"] <= time.time()

    served(test)


def test_a_stream_lives_on_heartbeats_until_its_answer() -> None:
    seconds = OPENING_S + 3.5 * HEARTBEAT_S

    async def test(served: Served) -> None:
        request = chat(served.key, stream=True)
        await request.run(served.app)
        beats = [OPENING_S + beat * HEARTBEAT_S for beat in range(4)]
        assert request.times == pytest.approx([*beats, seconds])
        assert request.text.endswith("data: [DONE]\n\n")
        assert served.counters.heartbeats == 4
        assert served.counters.held_s == pytest.approx(3.5 * HEARTBEAT_S)

    served(test, after(seconds))


def test_the_terminal_event_comes_after_the_record() -> None:
    """The answer is what the session returns once it has recorded the call."""
    recorded: list[float] = []

    async def recording(call: ModelCall) -> ModelAnswer:
        await asyncio.sleep(10)
        recorded.append(asyncio.get_running_loop().time())
        return said()

    async def test(served: Served) -> None:
        request = chat(served.key, stream=True)
        await request.run(served.app)
        ended = [time for time, message in request.sent if b"DONE" in message.get("body", b"")]
        assert ended == recorded == [10.0]

    served(test, recording)


def test_a_refusal_without_delay_has_its_own_status() -> None:
    overflow = CallRefusedError(Refusal.OVERFLOW, "the prompt is too long", tokens=9, limit=8)

    async def test(served: Served) -> None:
        request = chat(served.key, stream=True)
        await request.run(served.app)
        assert request.status == 400
        assert request.json["error"]["code"] == "context_length_exceeded"
        assert served.counters.refused[Refusal.OVERFLOW] == 1

    served(test, refusing(overflow))


def test_a_refusal_may_be_a_stream_where_the_wire_says_so() -> None:
    overflow = CallRefusedError(Refusal.OVERFLOW, "the prompt is too long", tokens=9, limit=8)

    async def test(served: Served) -> None:
        body = {"input": "Hi.", "stream": True}
        request = AsgiRequest("/v1/responses", body, served.key)
        await request.run(served.app)
        assert request.status == 200
        assert request.text.startswith("event: response.created\n")
        assert "event: response.failed\n" in request.text
        assert served.counters.refused[Refusal.OVERFLOW] == 1

    served(test, refusing(overflow))


def test_a_refusal_in_a_stream_ends_it_with_an_error() -> None:
    async def test(served: Served) -> None:
        request = chat(served.key, stream=True)
        await request.run(served.app)
        assert request.status == 200
        assert "no worker is left" in request.text
        assert request.sent[-1][1].get("more_body") is False

    served(test, refusing(CallRefusedError(Refusal.ENGINE, "no worker is left"), 10.0))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_leaves_the_call_to_its_session(stream: bool) -> None:
    async def test(served: Served) -> None:
        request = chat(served.key, stream=stream)
        answering = asyncio.create_task(request.run(served.app))
        await asyncio.sleep(10)
        request.left.set()
        await answering
        assert asyncio.get_running_loop().time() == 10.0
        assert served.counters.hang_ups == 1
        assert served.counters.under_way == 0
        assert (await served.session.tasks[0]).action.text == "Hello."

    served(test, after(60))


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_refuses_what_is_under_way(stream: bool) -> None:
    async def test(served: Served) -> None:
        request = chat(served.key, stream=stream)
        answering = asyncio.create_task(request.run(served.app))
        await asyncio.sleep(10)
        served.app.stop()
        await answering
        assert "the gateway has stopped" in request.text
        assert request.status == (200 if stream else 409)
        await asyncio.wait(served.session.tasks)

    served(test, after(60))


def test_an_error_of_the_gateway_is_an_error_of_the_wire_and_is_raised() -> None:
    async def test(served: Served) -> None:
        request = chat(served.key)
        with pytest.raises(ZeroDivisionError):
            await request.run(served.app)
        assert request.status == 503
        assert "failed to answer" in request.json["error"]["message"]
        again = chat(served.key)
        served.session.script = at_once
        await again.run(served.app)
        assert again.status == 200

    served(test, refusing(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"key": "stranger"}, 401),
        ({"headers": {"authorization": "Basic eA=="}}, 401),
        ({"headers": {"host": "rebound.example:80"}}, 421),
        ({"headers": {"host": "[::1]:80"}}, 200),
        ({"headers": {"host": "127.1.2.3:80"}}, 200),
        ({"headers": {"host": "127.0.0.1.example"}}, 421),
        ({"headers": {"content-length": "1001"}}, 413),
        ({"body": b"x" * 1001}, 413),
        ({"body": b"{"}, 400),
        ({"body": b"[" * 900}, 400),
        ({"body": b"\xff"}, 400),
        ({"body": []}, 400),
        ({"path": "/v1/unknown"}, 404),
        ({"path": "/v1/chat/completions", "method": "GET"}, 405),
    ],
)  # fmt: skip
def test_wrong_input_gets_an_error_and_the_next_request_an_answer(
    changes: dict[str, object], status: int
) -> None:
    async def test(served: Served) -> None:
        request = chat(served.key)
        for name, value in changes.items():
            setattr(request, name, value)
        await request.run(served.app)
        assert request.status == status
        assert (status == 200) != ("error" in request.json)
        after = chat(served.key)
        await after.run(served.app)
        assert after.status == 200

    served(test)


def test_a_sealed_key_is_told_apart_from_an_unknown_one() -> None:
    async def test(served: Served) -> None:
        assert served.keys.close(served.key) is served.session
        assert served.keys.close(served.key) is None
        request = chat(served.key)
        await request.run(served.app)
        assert request.status == 409

    served(test)


def test_a_session_sends_no_more_than_its_budget_at_once_and_in_all() -> None:
    size = len(json.dumps(chat("").body))

    async def test(served: Served) -> None:
        keys = KeyRing(at_once_bytes=2 * size, session_bytes=4 * size)
        app = GatewayApp(keys, GatewayCounters(), model="policy")
        key = keys.open(served.session)
        requests = [chat(key) for _ in range(3)]
        await asyncio.gather(*(request.run(app) for request in requests))
        assert [request.status for request in requests] == [200, 200, 429]
        assert [await status(app, key) for _ in range(2)] == [200, 413]
        assert await status(app, keys.open(served.session)) == 200

    async def status(app: GatewayApp, key: str) -> int:
        request = chat(key)
        await request.run(app)
        return request.status

    served(test, after(5))


def test_models_and_signs_of_life() -> None:
    async def test(served: Served) -> None:
        alive = AsgiRequest("/", None, method="GET", headers={"authorization": ""})
        await alive.run(served.app)
        assert alive.status == 200
        models = AsgiRequest("/v1/models", None, served.key, "GET")
        await models.run(served.app)
        assert [model["id"] for model in models.json["data"]] == ["policy"]
        stranger = AsgiRequest("/v1/models", None, "stranger", "GET")
        await stranger.run(served.app)
        assert stranger.status == 401

    served(test)


def test_a_history_is_read_once_and_gone_when_the_key_is_closed() -> None:
    """A request is read in the event loop if what is new in it is short."""

    async def test(served: Served) -> None:
        app = GatewayApp(served.keys, served.counters, model="policy")
        messages = [{"role": "user", "content": "x" * (2 * PARSED_IN_LOOP_BYTES)}]
        elsewhere = []

        async def to_thread(read: Callable[..., ModelCall], *given: object) -> ModelCall:
            elsewhere.append(read)  # virtual time knows no threads
            return read(*given)

        with patch.object(asyncio, "to_thread", to_thread):
            for turn in range(3):
                request = AsgiRequest("/v1/chat/completions", {"messages": messages}, served.key)
                await request.run(app)
                assert request.status == 200
                messages.append({"role": "user", "content": f"and {turn}"})
                assert len(elsewhere) == 1, "only the first request is long"
        assert [len(call.messages) for call in served.session.calls] == [1, 2, 3]
        assert served.session.calls[2].messages[0] is served.session.calls[0].messages[0]
        known = weakref.ref(served.keys.find(served.key).known)
        served.keys.close(served.key)
        assert known() is None

    served(test)
