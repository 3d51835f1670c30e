"""Many captured agents at once: real sessions, a real server, and clients on its Unix socket."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.policy import WORDS
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Sampling,
    Task,
)

CONTEXT = 1 << 18
CODEC = TextCodec(tiny_tokenizer_files(WORDS, CONTEXT))
PATH = "/v1/chat/completions"


class CountingEngine:
    """Answers each request with the name of its attempt and the number of the answer."""

    worker, hardware, stands_for = "engine-0", "CPU", frozenset({"CPU"})

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        name = request.trajectory_id
        text = f"{name} {self.answers[name]}"
        self.answers[name] += 1
        ids = (*CODEC.encode(text), CODEC.stop_token_ids[0])
        for _ in range(3):  # the requests of all others go on meanwhile
            await asyncio.sleep(0)
        yield Chunk(
            request.request_id, 0, ids, (-1.0,) * len(ids), (0,) * len(ids), FinishReason.STOP
        )

    async def abort(self, request_id: str) -> None: ...


class KeepAliveClient:
    """A client of one connection to a Unix socket, which costs little beside the server."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._head = (
            f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a call."""
        self._writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return int(head[9:12]), await self._reader.readexactly(length)


@dataclass
class Agent:
    """One captured agent: its session, its conversation, and the answers that it got."""

    session: CaptureSession
    key: str
    messages: list[dict[str, str]]
    answers: list[str]

    def body(self) -> bytes:
        """The request for the next answer."""
        return json.dumps({"model": "any", "messages": self.messages}).encode()

    def heard(self, status: int, body: bytes, then: str) -> None:
        """Take an answer, and say something after it."""
        answer: Any = json.loads(body)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        self.answers.append(text)
        self.messages.append({"role": "assistant", "content": text})
        self.messages.append({"role": "user", "content": then})


class Crowd:
    """A server, and the sessions of agents behind one engine."""

    def __init__(self, server: GatewayServer) -> None:
        self.server, self.engine = server, CountingEngine()
        self._proxy = LLMProxy([self.engine], lambda event: None, vocabulary=CODEC.vocab_size)
        self._assignment = Assignment(
            "", "g1", Task("talk", "talks"), 0, 7,
            Sampling(max_tokens=64, stop_token_ids=CODEC.stop_token_ids),
        )  # fmt: skip

    def agent(self, name: str, most_calls: int = 200) -> Agent:
        """A new agent."""
        session = CaptureSession(
            replace(self._assignment, trajectory_id=name),
            CODEC,
            self._proxy,
            AttemptLimits(context_tokens=CONTEXT),
            CaptureLimits(max_calls=most_calls),
            name=f"{name}@w.0",
        )
        return Agent(session, self.server.open(session), [{"role": "user", "content": "left"}], [])

    async def close(self) -> None:
        """Close the proxy of the engine."""
        await self._proxy.close()


@asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """Provide a server on a Unix socket and its engine."""
    async with GatewayServer() as server:
        made = Crowd(server)
        try:
            yield made
        finally:
            await made.close()


async def converse(crowd: Crowd, agent: Agent, calls: int) -> None:
    """Make a number of calls, each of which goes on from the one before."""
    assert crowd.server.socket is not None
    async with KeepAliveClient(crowd.server.socket, agent.key) as client:
        for _ in range(calls):
            agent.heard(*await client.post(agent.body()), then="right")


@dataclass(frozen=True)
class Talked:
    """What became of the calls of many agents."""

    lost: int
    """Answers that an agent did not get, or that are in no row."""
    doubled: int
    """Answers that were sampled, given or stored twice, or that are another agent's."""


async def talk(rollouts: int, calls: int) -> Talked:
    """Have many agents talk at once."""
    async with crowd() as made:
        agents = {name: made.agent(name) for name in (f"a{n}" for n in range(rollouts))}
        await asyncio.gather(*(converse(made, agent, calls) for agent in agents.values()))
        lost = doubled = 0
        for name, agent in agents.items():
            wanted = Counter(f"{name} {call}" for call in range(calls))
            await agent.session.seal()
            for got in (Counter(agent.answers), Counter(stored(agent, name))):
                lost += (wanted - got).total()
                doubled += (got - wanted).total()
            doubled += made.engine.answers[name] - calls
        assert made.server.counters.calls == rollouts * calls
    return Talked(lost, doubled)


def stored(agent: Agent, name: str) -> list[str]:
    """Texts of the sampled tokens of an agent's rows."""
    return [
        CODEC.decode(recorder.token_ids[turn.action_start : turn.end])
        for recorder, _ in agent.session.rows(name)
        for turn in recorder.own
    ]
