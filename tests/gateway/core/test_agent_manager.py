"""AgentManager: one attempt of a program, three stages, one outcome whatever happens on the way."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.rollout.attempt_manager import AttemptContext
from rollart_flow.control.rollout.dispatch import FREE, Dispatch
from rollart_flow.control.schedule.declarations import GroupPlacement
from rollart_flow.gateway.core.agent_manager import AgentManager, AgentStages, StageLimits
from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.types import AttemptLimits, Outcome, Reason, Trajectory
from tests.gateway.core.rig import ADDED, ASSIGNMENT, CODEC, Client, Script, ScriptedEngine, called

STAGES = StageLimits(init_s=10, run_s=100, judge_s=50, grace_s=5)
Program = Callable[[Client], Awaitable[int]]
"""Plays a program: asks, and returns its exit code."""


def wall(seconds: float) -> datetime:
    return datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=seconds)


class Gateway:
    """Knows the sessions of open keys."""

    def __init__(self) -> None:
        self.sessions: dict[str, CaptureSession] = {}
        self.opened = 0

    def open(self, session: CaptureSession) -> str:
        self.opened += 1
        self.sessions[f"key-{self.opened}"] = session
        return f"key-{self.opened}"

    def close(self, key: str) -> None:
        del self.sessions[key]


class Admission:
    """Permits all, and notes the first tokens."""

    def __init__(self, refused: Cancellation | None = None) -> None:
        self.refused = refused
        self.starts: list[tuple[str, int]] = []

    async def permit(self, trajectory_id: str, worker: str) -> Cancellation | None:
        return self.refused

    async def started(self, trajectory_id: str, version: int) -> None:
        self.starts.append((trajectory_id, version))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a manager does not call {name}")


@dataclass
class Box:
    """The environment of a program, with the times and the bounds that a real box has."""

    gateway: Gateway
    program: Program
    init_s: float = 1.0
    judge_s: float = 1.0
    run_s: float = 1.0
    steps: int = 1
    """Judgements until the task ends."""
    seen: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Texts of the policy that the judge gets."""
    now: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    """Most attempts in a stage at a time, over all boxes that share the counters."""

    async def _takes(self, stage: str, seconds: float) -> None:
        self.seen.append(stage)
        self.now[stage] += 1
        self.most[stage] = max(self.most[stage], self.now[stage])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now[stage] -= 1

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        await self._takes("reset", self.init_s)
        return "task?", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        ((stage, argument),) = json.loads(action).items()
        if stage == "judge":
            await self._takes("judge", self.judge_s)
            self.steps -= 1
            over = self.steps == 0 or argument["last"]
            self.said += argument["said"]
            return "", 0.5, over, False, {"success": over, "diff": "-a\n+b\n"} if over else {}
        await self._takes("run", self.run_s)
        client, killed, code = Client(self.gateway.sessions[argument].answer), "", 0
        try:
            async with asyncio.timeout(STAGES.run_s + STAGES.grace_s - self.run_s):
                code = await self.program(client)
        except TimeoutError:
            killed = "time"
        except CallRefusedError as error:
            return "", 0.0, False, False, {"exit_code": 3, "killed": "", "said": f"{error}"}
        return "", 0.0, False, False, {"exit_code": code, "killed": killed, "said": "bye"}

    async def close(self) -> None:
        self.seen.append("close")


class Attempt:
    """One attempt with a scripted engine."""

    def __init__(self, program: Program, *says: Script | str, **settings: Any) -> None:
        self.gateway, self.admission = Gateway(), settings.pop("admission", Admission())
        self.engine = ScriptedEngine(*says or ("done",))
        self.proxy = LLMProxy([self.engine], lambda event: None)
        capture = settings.pop("capture", CaptureLimits())
        self.stages = settings.pop("stages", AgentStages(4, 4, 4))
        assignment = settings.pop("assignment", ASSIGNMENT)
        dispatch = settings.pop("dispatch", FREE)
        self.box = Box(settings.pop("gateway", self.gateway), program, **settings)
        context = AttemptContext(
            proxy=self.proxy, wall=wall, admission=self.admission, worker="w", dispatch=dispatch
        )
        self.manager = AgentManager(
            assignment,
            lambda: self.box,
            CODEC,
            AttemptLimits(
                context_tokens=20_000, step_timeout_s=STAGES.init_s, trajectory_timeout_s=math.inf
            ),
            context,
            gateway=self.gateway,
            capture=capture,
            stages=self.stages,
            stage_limits=STAGES,
        )

    async def run(self) -> tuple[Trajectory, ...]:
        """Run to the end; nothing of the attempt is left."""
        rows = await self.manager.run()
        await self.proxy.close()
        assert not self.gateway.sessions, "a key is still open"
        assert "close" in self.box.seen or self.box.seen == []
        assert self.stages.init.free + self.stages.run.free + self.stages.judge.free == 12
        return rows


async def adds(client: Client) -> int:
    """Ask twice, with the result of a tool between."""
    await client.turn()
    client.results("3")
    await client.turn()
    return 0


async def asks_for_ever(client: Client) -> int:
    """Ask until the answer calls no tool."""
    while (await client.turn()).action.tool_calls:
        client.results("3")
        await asyncio.sleep(1)
    return 0


async def test_an_attempt_has_its_calls_its_reward_and_its_verdicts() -> None:
    attempt = Attempt(adds, ADDED, "3")
    (row,) = await attempt.run()
    assert (row.outcome, row.reason, row.solved) == (Outcome.COMPLETED, None, True)
    assert [turn.reward for turn in row.turns] == [0.0, 0.5]
    assert row.turns[-1].step_s == 1.0, "the time of judging"
    assert row.reset_s == 1.0
    assert row.diff == "-a\n+b\n"
    assert row.exchanges is not None
    assert [each.trained_tokens > 0 for each in row.exchanges] == [True, True]
    assert attempt.admission.starts == [("g1-00", 3)]
    assert attempt.box.seen == ["reset", "run", "judge", "close"]


async def test_the_program_works_at_each_step_of_a_task() -> None:
    attempt = Attempt(adds, ADDED, "3", ADDED, "3", steps=2)
    rows = await attempt.run()
    assert attempt.box.seen == ["reset", "run", "judge", "run", "judge", "close"]
    assert sum(turn.reward for row in rows for turn in row.turns) == 1.0
    assert {row.outcome for row in rows} == {Outcome.COMPLETED}


async def test_the_judge_hears_what_the_policy_said_and_called() -> None:
    calls = called(("say", {"text": "git reflog", "times": 2}), text="I look.")
    attempt = Attempt(adds, calls, "done")
    await attempt.run()
    assert attempt.box.said == ["I look.", "git reflog", "done"]


async def fails(client: Client) -> int:
    await client.turn()
    return 2


async def silent(client: Client) -> int:
    return 0


async def stays(client: Client) -> int:
    await client.turn()
    return await asyncio.sleep(1e6, 0)


@pytest.mark.parametrize(
    ("program", "says", "outcome", "reason", "error", "judged"),
    [
        (fails, ("hm",), Outcome.FAILED, Reason.AGENT_FAILED, "exit code 2: bye", False),
        (silent, (), Outcome.FAILED, Reason.AGENT_SILENT, "made no call", False),
        (stays, ("hm",), Outcome.TIMED_OUT, Reason.AGENT_TIMEOUT, "was killed", False),
        (asks_for_ever, (ADDED,), Outcome.TRUNCATED, Reason.AGENT_TIMEOUT, None, True),
        (
            adds, (Script("hm", fails_after=1),),
            Outcome.FAILED, Reason.ENGINE_ERROR, "the engine broke", False,
        ),
    ],
)  # fmt: skip
async def test_each_end_of_a_program_has_a_reason(
    program: Program,
    says: tuple[Script | str, ...],
    outcome: Outcome,
    reason: Reason,
    error: str | None,
    judged: bool,
) -> None:
    attempt = Attempt(program, *says)
    row, *_ = await attempt.run()
    assert (row.outcome, row.reason) == (outcome, reason)
    assert (error or "") in (row.error or "")
    assert ("judge" in attempt.box.seen) is judged
    assert (sum(turn.reward for turn in row.turns) > 0) is judged


async def test_a_program_that_spent_its_calls_is_judged_as_truncated() -> None:
    attempt = Attempt(asks_for_ever, ADDED, capture=CaptureLimits(max_calls=3))
    row, *_ = await attempt.run()
    assert (row.outcome, row.reason) == (Outcome.TRUNCATED, Reason.TURN_LIMIT)
    assert row.exchanges is not None
    assert [each.control for each in row.exchanges] == [False, False, False, True]
    assert sum(turn.reward for turn in row.turns) == 0.5


async def test_a_cancelled_program_gets_a_last_answer_and_time_to_end() -> None:
    last: list[str] = []

    async def program(client: Client) -> int:
        while (answer := await client.turn()).action.tool_calls:
            client.results("3")
        last.append(answer.action.text)
        await asyncio.sleep(1)
        last.append("ended")
        return 0

    held = asyncio.Event()
    attempt = Attempt(program, ADDED, Script("long", chunks=4, waits=held))
    task = asyncio.ensure_future(attempt.run())
    await asyncio.sleep(20)
    attempt.manager.cancel(Cancellation("g1-00", Outcome.REDUNDANT, Reason.GROUP_COMPLETE))
    asyncio.get_running_loop().call_later(0.5, held.set)
    row, *_ = await task
    assert (row.outcome, row.reason) == (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
    assert last == ["The time for this task is over. Stop here.", "ended"]
    assert attempt.box.seen == ["reset", "run", "close"]


async def test_a_cancelled_program_that_stays_is_killed_after_the_grace() -> None:
    attempt = Attempt(stays)
    task = asyncio.ensure_future(attempt.run())
    await asyncio.sleep(20)
    attempt.manager.cancel(Cancellation("g1-00", Outcome.STALE, Reason.STALENESS_BOUND))
    row, *_ = await task
    assert row.outcome is Outcome.STALE
    assert asyncio.get_running_loop().time() == pytest.approx(20 + STAGES.grace_s)
    assert sum(row.action_mask) > 0, "what was sampled is kept"


@pytest.mark.parametrize(("at_s", "seen"), [(0.5, ["reset", "close"]), (2.5, ["judge", "close"])])
async def test_a_cancellation_ends_the_other_stages_at_once(at_s: float, seen: list[str]) -> None:
    attempt = Attempt(adds, ADDED, "3")
    task = asyncio.ensure_future(attempt.run())
    await asyncio.sleep(at_s)
    attempt.manager.cancel(Cancellation("g1-00", Outcome.CANCELLED, Reason.RUN_STOPPED))
    row, *_ = await task
    assert row.outcome is Outcome.CANCELLED
    assert asyncio.get_running_loop().time() == pytest.approx(at_s)
    assert attempt.box.seen[-2:] == seen


@pytest.mark.parametrize(
    ("slow", "said"),
    [({"init_s": 11.0}, "reset took over 10 s"), ({"judge_s": 51.0}, "judging took over 50 s")],
)
async def test_a_stage_that_takes_too_long_is_timed_out(slow: dict[str, Any], said: str) -> None:
    row, *_ = await Attempt(adds, ADDED, "3", **slow).run()
    assert (row.outcome, row.reason) == (Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT)
    assert row.error == said


async def test_an_attempt_without_permission_opens_no_box() -> None:
    refused = Cancellation("g1-00", Outcome.STALE, Reason.STALENESS_BOUND)
    attempt = Attempt(adds, admission=Admission(refused))
    (row,) = await attempt.run()
    assert (row.outcome, row.reason, row.token_ids) == (Outcome.STALE, refused.reason, ())
    assert attempt.box.seen == []
    assert attempt.gateway.opened == 0


async def test_a_program_that_is_refused_for_its_context_is_judged_as_truncated() -> None:
    async def program(client: Client) -> int:
        client.say("word " * 9000)
        with pytest.raises(CallRefusedError) as refused:
            await client.turn()
        assert refused.value.refusal is Refusal.OVERFLOW
        return 1

    async def asks_first(client: Client) -> int:
        await client.turn()
        return await program(client)

    attempt = Attempt(asks_first)
    row, *_ = await attempt.run()
    assert (row.outcome, row.reason) == (Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW)
    assert "judge" in attempt.box.seen


async def test_the_stages_of_several_attempts_overlap_within_their_places() -> None:
    stages = AgentStages(2, 3, 1)
    attempts = [Attempt(adds, ADDED, "3", stages=stages, run_s=4.0) for _ in range(12)]
    for attempt in attempts[1:]:
        attempt.box.now, attempt.box.most = attempts[0].box.now, attempts[0].box.most
    rows = await asyncio.gather(*(attempt.manager.run() for attempt in attempts))
    assert {row.outcome for (row,) in rows} == {Outcome.COMPLETED}
    assert attempts[0].box.most == {"reset": 2, "run": 3, "judge": 1}
    alone_s = 12 * (1 + 4 + 1)
    assert asyncio.get_running_loop().time() < alone_s / 2.5


async def test_attempts_of_several_rounds_do_not_wait_for_one_another_in_a_circle() -> None:
    stages = AgentStages(3, 1, 1)
    attempts = [Attempt(adds, ADDED, "3", ADDED, "3", stages=stages, steps=2) for _ in range(3)]
    rows = await asyncio.gather(*(attempt.manager.run() for attempt in attempts))
    assert {row.outcome for branches in rows for row in branches} == {Outcome.COMPLETED}


async def test_calls_of_a_group_are_decoded_where_its_schedule_wants_them() -> None:
    of_group = replace(ASSIGNMENT, trajectory_id="g00000007-01", group_id="g00000007")
    together = Dispatch(group_placement=GroupPlacement.TOGETHER)
    attempt = Attempt(adds, ADDED, "3", assignment=of_group, dispatch=together)
    await attempt.run()
    assert [request.placement for request in attempt.engine.requests] == [7, 7]
    spread = Attempt(adds, ADDED, "3", assignment=of_group)
    await spread.run()
    assert [request.placement for request in spread.engine.requests] == [None, None]
