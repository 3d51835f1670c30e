"""Sessions of the gateway under virtual time: clients and engines do by chance what may happen.

`fuzz_gateway` checks after each session that every sampled token is in one row, as it was sampled,
that every prompt is the beginning of its row and shows the policy what its client sent, and that a
call samples once.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.gateway.core.rows import Rows
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.simulation import run
from rollart_flow.types import AttemptLimits
from tests.dst.captured_checks import (
    check_answers,
    check_calls,
    check_parents,
    check_repeats,
    check_tokens,
    rows_of,
)
from tests.dst.captured_clients import ChanceClient, Shared
from tests.dst.captured_engine import ChanceEngine
from tests.dst.fuzzer import Result
from tests.dst.log import Log
from tests.gateway.core.rig import ASSIGNMENT, CODEC, SAY

_NAME = "g1-00@w.0"


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What one seed tries out."""

    seed: int
    clients: int
    turns: int
    faults: float
    workers: int
    updates: int
    context_tokens: int
    ends_at: float | None
    """When the attempt is over, whatever its clients do; None: after them."""
    capture: CaptureLimits
    takes: bool
    """Whether rows are taken while the session goes on."""


def capture_plan(seed: int) -> CapturePlan:
    """The plan of a seed."""
    chance = random.Random(f"gateway {seed}")
    every = frozenset(CallKind)
    return CapturePlan(
        seed=seed,
        clients=chance.randint(1, 4),
        turns=chance.randint(1, 14),
        faults=chance.choice((0.0, 0.1, 0.3)),
        workers=chance.randint(1, 2),
        updates=chance.randint(0, 3),
        context_tokens=chance.choice((600, 2000, 100_000)),
        ends_at=chance.choice((None, None, 0.2, 3.0)),
        capture=CaptureLimits(
            max_calls=chance.choice((5, 200, 200)),
            max_tokens=chance.choice((300, 1_000_000, 1_000_000)),
            max_under_way=chance.choice((2, 32, 32, 32)),
            per_request=chance.random() < 0.2,
            trained=chance.choice((every, frozenset({CallKind.MAIN}), CaptureLimits().trained)),
        ),
        takes=chance.random() < 0.4,
    )


def fuzz_gateway(seeds: Iterable[int]) -> Iterator[Result]:
    """Run the session of each seed, and yield the results in order."""
    for seed in seeds:
        plan, log, error = capture_plan(seed), Log(), None
        checks = 0
        try:
            chance = random.Random(f"session {plan.seed}")
            checks = run(simulate_session(plan, log, chance), seed=seed, shuffle=True)
        except Exception as failure:  # noqa: BLE001  any failure of a run is a finding
            error = f"{type(failure).__name__}: {failure}"
        seconds = log.entries[-1].time_s if log.entries else 0.0
        yield Result(
            seed=seed, plan=str(plan), error=error, log=tuple(log.entries), seconds=seconds,
            checks=checks, gateway=True,
        )  # fmt: skip


async def simulate_session(plan: CapturePlan, log: Log, chance: random.Random) -> int:
    """Run a session and check it; the number of what was checked.

    Raises:
        BrokenGuaranteeError: a guarantee was broken.
    """
    sampled: dict[float, tuple[int, int]] = {}
    engines = [
        ChanceEngine(f"engine-{n}", chance, plan.faults, sampled) for n in range(plan.workers)
    ]
    proxy = LLMProxy(engines, log.event, vocabulary=CODEC.vocab_size)
    for engine in engines:
        engine.on_left = lambda engine=engine: _return_later(proxy, engine)  # type: ignore[misc]
    limits = AttemptLimits(context_tokens=plan.context_tokens, max_branches=40)
    session = CaptureSession(ASSIGNMENT, CODEC, proxy, limits, plan.capture, name=_NAME)
    shared = Shared(session, chance, log)
    updates = asyncio.ensure_future(_update(engines, chance, plan.updates))
    clients = [
        ChanceClient(shared, f"client-{n}", *([(SAY,)] if chance.random() < 0.2 else []))
        for n in range(plan.clients)
    ]
    running = asyncio.gather(*(client.run(plan.turns) for client in clients))
    taken: Rows = []
    taking = asyncio.ensure_future(_take(session, taken)) if plan.takes else None
    if plan.ends_at is not None:
        await asyncio.wait([running], timeout=plan.ends_at)
        session.finish("The attempt is over.")
    await running
    if chance.random() < 0.5:
        session.finish("The attempt is over.")
    await session.seal()
    if taking is not None:
        taking.cancel()
        taken += session.take(ASSIGNMENT.trajectory_id)[0]
    await updates
    await proxy.close()
    requests = [request for engine in engines for request in engine.requests]
    made = taken or session.rows(ASSIGNMENT.trajectory_id)
    rows = rows_of(made, ASSIGNMENT)
    check_parents(rows)
    check_tokens(rows, sampled)
    check_calls(rows, session.exchanges, requests, plan.capture)
    check_answers(rows, session.exchanges, requests, shared.answered)
    check_repeats(shared.lost)
    return len(sampled) + len(session.exchanges) + len(shared.answered) + len(shared.lost)


async def _take(session: CaptureSession, taken: Rows) -> None:
    """Take the rows of what has settled, again and again."""
    while True:
        await asyncio.sleep(0.4)
        taken += session.take(ASSIGNMENT.trajectory_id)[0]


async def _update(engines: Sequence[ChanceEngine], chance: random.Random, updates: int) -> None:
    for _ in range(updates):
        await asyncio.sleep(chance.random())
        await asyncio.gather(*(engine.update(chance.random()) for engine in engines))


def _return_later(proxy: LLMProxy, engine: ChanceEngine) -> None:
    asyncio.get_running_loop().call_later(0.05, proxy.add, engine)
