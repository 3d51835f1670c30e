"""EnvManager: one attempt, one trajectory, whatever happens on the way."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import (
    Admission,
    Cancellation,
    Order,
    Permission,
    ResetOnly,
    RunningAttempt,
)
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.errors import EngineError, EnvironmentTimeoutError, SettingsError
from rollart_flow.simulation import VirtualTimeLoop
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Outcome,
    Reason,
    Sampling,
    Split,
    Task,
    Trajectory,
)
from rollart_flow.types.verdicts import Verdict
from tests.dst.environments import DAWN, LetterCodec, wall
from tests.dst.log import EventLog

Answer = object
HANG = "hang"
STAY: Answer = ("next", 0.25, False, False, {})
DONE: Answer = ("", 1.0, True, False, {"success": True})


class ScriptedEnvironment:
    """Answers from a list; an exception is raised, HANG waits for ever, each after a second."""

    def __init__(self, *steps: Answer, reset: Answer = ("go", {}), close: Answer = None) -> None:
        self._steps = list(steps)
        self._reset = reset
        self._close = close
        self.actions: list[str] = []
        self.seeds: list[tuple[int, str]] = []
        self.closed = 0

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        self.seeds.append((seed, task))
        answer: tuple[str, Mapping[str, object]] = await self._give(self._reset)
        return answer

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        self.actions.append(action)
        answer: tuple[str, float, bool, bool, Mapping[str, object]]
        answer = await self._give(self._steps.pop(0))
        return answer

    async def close(self) -> None:
        self.closed += 1
        await self._give(self._close)

    async def _give(self, answer: Answer) -> Any:
        await asyncio.sleep(1)
        if answer == HANG:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class OneLetterEngine:
    """Draws "x" and a stop token, a second each; version counts up with every token."""

    worker = "engine"
    hardware = "H20"
    stands_for = frozenset(("H20",))

    def __init__(self, fail: Exception | None = None, silent: bool = False) -> None:
        self.requests: list[GenerationRequest] = []
        self._version = -1
        self._fail = fail
        self._silent = silent

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        tokens = (ord("x"), 0)[: request.sampling.max_tokens]
        for offset, token in enumerate(tokens):
            await asyncio.sleep(1)
            if self._silent:
                await asyncio.Event().wait()
            end = FinishReason.STOP if token == 0 else None
            if offset == len(tokens) - 1 and token:
                end = FinishReason.LENGTH
            self._version += 1
            yield Chunk(request.request_id, offset, (token,), (-0.5,), (self._version,), end)
            if self._fail is not None:
                raise self._fail

    async def abort(self, request_id: str) -> None:
        pass


class Permits(Admission):
    """A scheduler that answers as it is told."""

    def __init__(self, refuse: Permission = None, deaf: bool = False) -> None:
        self.refuse = refuse
        self.deaf = deaf
        self.reports: list[tuple[float, str, int]] = []
        self.asked: list[tuple[str, str]] = []

    async def admit(self, source: str, index: int, most: int = 1) -> tuple[Assignment, ...]:
        return ()

    async def permit(self, trajectory_id: str, host: str) -> Permission:
        self.asked.append((trajectory_id, host))
        return self.refuse

    async def started(self, trajectory_id: str, version: int) -> None:
        self.reports.append((asyncio.get_running_loop().time(), trajectory_id, version))
        if self.deaf:
            await asyncio.Event().wait()

    async def orders(self, host: str, after: int) -> tuple[int, tuple[Order, ...]]:
        raise NotImplementedError

    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        raise NotImplementedError

    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        raise NotImplementedError


def assignment(sampling: Sampling | None = None, split: Split = Split.TRAIN) -> Assignment:
    sampling = sampling or Sampling(max_tokens=4, stop_token_ids=(0,))
    return Assignment("g1-02", "g1", Task("task", "lake", '{"n":1}'), 2, 77, sampling, split)


def manager(
    environment: ScriptedEnvironment | Callable[[], ScriptedEnvironment],
    *,
    engine: OneLetterEngine | None = None,
    admission: Admission | None = None,
    limits: AttemptLimits | None = None,
    sampling: Sampling | None = None,
) -> EnvManager:
    return EnvManager(
        assignment(sampling),
        environment if callable(environment) else lambda: environment,
        LetterCodec(),
        LLMProxy([engine or OneLetterEngine()], EventLog()),
        limits or AttemptLimits(max_turns=10, context_tokens=100, step_timeout_s=60),
        wall,
        env_version="lake-1",
        admission=admission,
        worker="host",
    )


def check_alignment(trajectory: Trajectory) -> None:
    """What every trajectory promises about its token lists and turns."""
    count = len(trajectory.token_ids)
    assert len(trajectory.action_mask) == len(trajectory.logprobs) == count
    assert len(trajectory.token_versions) == count
    for mask, logprob, version in zip(
        trajectory.action_mask, trajectory.logprobs, trajectory.token_versions, strict=True
    ):
        assert (logprob, version) == (0.0, -1) if not mask else version >= 0
    ends = [0, *(turn.end for turn in trajectory.turns)]
    assert [turn.start for turn in trajectory.turns] == ends[:-1]
    assert ends[-1] == count
    drawn = [v for v in trajectory.token_versions if v >= 0]
    assert trajectory.policy_version_start == (drawn[0] if drawn else None)
    assert trajectory.policy_version_end == (drawn[-1] if drawn else None)


async def test_what_the_environment_reports_is_in_the_trajectory() -> None:
    verdict = {"key": "test_a", "passed": np.bool_(False), "message": "1 !=\n2"}
    first = {"diff": "-a", "suspicions": ["network_attempt: connect"]}
    last = {"success": False, "verdicts": [verdict], "verifier": "v1", "diff": "+b"}
    environment = ScriptedEnvironment(
        ("next", 0.0, False, False, first), ("", 0.0, True, False, last)
    )
    (trajectory,) = await manager(environment).run()
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.verdicts == (Verdict(key="test_a", passed=False, message="1 != 2"),)
    assert (trajectory.diff, trajectory.verifier) == ("+b", "v1")
    assert trajectory.suspicions == ("network_attempt: connect",)


async def test_a_report_of_a_wrong_type_fails_the_attempt_in_one_line() -> None:
    environment = ScriptedEnvironment(("", 1.0, True, False, {"diff": b"+"}))
    (trajectory,) = await manager(environment).run()
    assert (trajectory.outcome, trajectory.reason) == (Outcome.FAILED, Reason.ENVIRONMENT_ERROR)
    assert trajectory.error == "step raised TypeError: info['diff'] is bytes; it must be a text"


async def test_an_episode_becomes_a_trajectory() -> None:
    environment = ScriptedEnvironment(STAY, DONE)
    (trajectory,) = await manager(environment).run()
    check_alignment(trajectory)
    assert trajectory.outcome is Outcome.COMPLETED
    assert (trajectory.reason, trajectory.error) == (None, None)
    x = ord("x")
    assert trajectory.token_ids == (ord("g"), ord("o"), x, 0, *map(ord, "next"), x, 0)
    assert trajectory.action_mask == (False,) * 2 + (True,) * 2 + (False,) * 4 + (True,) * 2
    assert trajectory.token_versions == (-1, -1, 0, 1, -1, -1, -1, -1, 2, 3)
    assert (trajectory.policy_version_start, trajectory.policy_version_end) == (0, 3)
    assert environment.actions == ["x", "x"]
    assert environment.seeds == [(77, '{"n":1}')]
    assert environment.closed == 1
    assert trajectory.solved is True
    assert trajectory.reward is None
    first, second = trajectory.turns
    assert (first.observation, first.action, first.reward) == ("go", "x", 0.25)
    assert (first.generate_s, first.step_s) == (2.0, 1.0)
    assert (first.worker, first.hardware, first.finish_reason) == ("engine", "H20", "stop")
    assert (second.observation, second.reward) == ("next", 1.0)
    assert trajectory.reset_s == 1.0
    assert trajectory.created_at == DAWN
    assert trajectory.finished_at == DAWN + timedelta(seconds=7)
    assert (trajectory.task_id, trajectory.domain, trajectory.attempt) == ("task", "lake", 2)
    assert (trajectory.env_seed, trajectory.env_version) == (77, "lake-1")


async def test_the_engine_sees_the_whole_chain_as_it_was_drawn() -> None:
    engine = OneLetterEngine()
    (trajectory,) = await manager(ScriptedEnvironment(STAY, DONE), engine=engine).run()
    first, second = engine.requests
    assert first.prompt_ids == trajectory.token_ids[:2]
    assert second.prompt_ids == trajectory.token_ids[:8]
    assert first.request_id != second.request_id
    assert {r.trajectory_id for r in engine.requests} == {"g1-02"}
    assert {r.domain for r in engine.requests} == {"lake"}


async def test_an_attempt_that_runs_twice_asks_twice() -> None:
    """An engine takes a request id that it knows for a repeated message."""
    engine = OneLetterEngine()
    proxy = LLMProxy([engine], EventLog())

    def attempt() -> EnvManager:
        limits = AttemptLimits(max_turns=2, context_tokens=100)
        environment = ScriptedEnvironment(STAY, DONE)
        return EnvManager(assignment(), lambda: environment, LetterCodec(), proxy, limits, wall)

    (one,), (two,) = await asyncio.gather(attempt().run(), attempt().run())
    assert one.outcome is two.outcome is Outcome.COMPLETED
    assert len({r.request_id for r in engine.requests}) == 4


async def test_the_environments_own_truncation() -> None:
    (trajectory,) = await manager(ScriptedEnvironment(("", 0.0, False, True, {}))).run()
    assert (trajectory.outcome, trajectory.reason) == (Outcome.TRUNCATED, Reason.TURN_LIMIT)
    assert trajectory.solved is None


async def test_the_turn_limit_truncates() -> None:
    limits = AttemptLimits(max_turns=2, context_tokens=100)
    (trajectory,) = await manager(ScriptedEnvironment(STAY, STAY), limits=limits).run()
    assert (trajectory.outcome, trajectory.reason) == (Outcome.TRUNCATED, Reason.TURN_LIMIT)
    assert len(trajectory.turns) == 2


async def test_a_full_context_truncates_before_the_observation_that_does_not_fit() -> None:
    limits = AttemptLimits(max_turns=10, context_tokens=8)
    environment = ScriptedEnvironment(STAY, DONE)
    (trajectory,) = await manager(environment, limits=limits).run()
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW)
    assert len(trajectory.token_ids) == 4
    assert trajectory.turns[0].reward == 0.25


async def test_an_action_gets_no_more_tokens_than_the_context_has_room_for() -> None:
    engine = OneLetterEngine()
    limits = AttemptLimits(max_turns=10, context_tokens=3)
    (trajectory,) = await manager(ScriptedEnvironment(STAY), engine=engine, limits=limits).run()
    assert engine.requests[0].sampling.max_tokens == 1
    assert trajectory.turns[0].finish_reason == FinishReason.LENGTH
    assert (trajectory.outcome, trajectory.reason) == (Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW)


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (ScriptedEnvironment(reset=OSError("no such map")), "reset raised OSError: no such map"),
        (ScriptedEnvironment(ValueError("bad\nmove")), "step raised ValueError: bad move"),
        (
            ScriptedEnvironment(reset="go"),
            "it must return (observation: text or messages",
        ),
        (ScriptedEnvironment(reset=("go",)), "reset returned 1 values; it must return"),
        (ScriptedEnvironment(reset=(3, {})), "returned int as observation"),
        (ScriptedEnvironment(reset=("go", None)), "reset returned None as info"),
        (ScriptedEnvironment(("a", 0.0, True, False)), "step returned 4 values"),
        (ScriptedEnvironment(("a", "1", True, False, {})), "step returned str as reward"),
        (ScriptedEnvironment(("a", math.nan, True, False, {})), "step returned the reward nan"),
        (ScriptedEnvironment(("a", 1.0, 1, False, {})), "step returned int as terminated"),
        (ScriptedEnvironment(("a", 1.0, True, None, {})), "step returned None as truncated"),
        (ScriptedEnvironment(("a", 1.0, True, False, [])), "step returned list as info"),
        (ScriptedEnvironment(asyncio.CancelledError()), "the environment raised CancelledError"),
    ],
)
async def test_whatever_an_environment_does_wrong_is_a_failed_trajectory(
    environment: ScriptedEnvironment, error: str
) -> None:
    (trajectory,) = await manager(environment).run()
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (Outcome.FAILED, Reason.ENVIRONMENT_ERROR)
    assert trajectory.error is not None
    assert error in trajectory.error
    assert "\n" not in trajectory.error
    assert environment.closed == 1


async def test_an_environment_that_cannot_be_made_is_a_failed_trajectory() -> None:
    def make() -> ScriptedEnvironment:
        raise ImportError("no gym here")

    (trajectory,) = await manager(make).run()
    assert (trajectory.outcome, trajectory.error) == (
        Outcome.FAILED,
        "reset raised ImportError: no gym here",
    )


class StartedEnvironment(ScriptedEnvironment):
    """Takes a while to start before its first reset."""

    def __init__(self, seconds: float) -> None:
        super().__init__(DONE)
        self._seconds = seconds

    async def start(self) -> None:
        await asyncio.sleep(self._seconds)


async def test_the_start_of_an_environment_is_no_step_of_it() -> None:
    (trajectory,) = await manager(StartedEnvironment(200)).run()
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.reset_s == 201.0


async def test_a_start_that_takes_too_long_ends_the_attempt() -> None:
    limits = AttemptLimits(max_turns=10, context_tokens=100, trajectory_timeout_s=math.inf)
    environment = StartedEnvironment(1000)
    (trajectory,) = await manager(environment, limits=limits).run()
    assert (trajectory.outcome, trajectory.error) == (Outcome.TIMED_OUT, "start took over 300 s")
    assert environment.closed == 1


async def test_numpy_values_are_answers_too() -> None:
    answer = ("", np.float32(0.5), np.bool_(True), np.bool_(False), {"success": np.bool_(False)})
    (trajectory,) = await manager(ScriptedEnvironment(answer)).run()
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.turns[0].reward == 0.5
    assert trajectory.solved is False


async def test_text_that_cannot_be_encoded_is_a_failed_trajectory() -> None:
    class Strict(LetterCodec):
        def encode_observation(
            self, text: str, *, first: bool, ended: bool = True
        ) -> tuple[int, ...]:
            return tuple(text.encode("ascii"))

    strict = EnvManager(
        assignment(),
        lambda: ScriptedEnvironment(reset=("é", {})),
        Strict(),
        LLMProxy([OneLetterEngine()], EventLog()),
        AttemptLimits(max_turns=1, context_tokens=10),
        wall,
    )
    (trajectory,) = await strict.run()
    assert trajectory.reason is Reason.ENVIRONMENT_ERROR
    assert "encoding the observation raised UnicodeEncodeError" in (trajectory.error or "")


@pytest.mark.parametrize(("max_tokens", "ended"), [(4, True), (1, False)])
async def test_the_codec_hears_whether_the_action_before_ended_its_turn(
    max_tokens: int, ended: bool
) -> None:
    asked: list[tuple[bool, bool]] = []

    class Asked(LetterCodec):
        def encode_observation(
            self, text: str, *, first: bool, ended: bool = True
        ) -> tuple[int, ...]:
            asked.append((first, ended))
            return super().encode_observation(text, first=first, ended=ended)

    attempt = EnvManager(
        assignment(Sampling(max_tokens=max_tokens, stop_token_ids=(0,))),
        lambda: ScriptedEnvironment(STAY, DONE),
        Asked(),
        LLMProxy([OneLetterEngine()], EventLog()),
        AttemptLimits(max_turns=2, context_tokens=100),
        wall,
    )
    await attempt.run()
    assert asked == [(True, True), (False, ended)]


@pytest.mark.parametrize(
    ("environment", "tokens"),
    [(ScriptedEnvironment(reset=HANG), 0), (ScriptedEnvironment(HANG), 4)],
)
async def test_an_environment_that_hangs_times_out(
    environment: ScriptedEnvironment, tokens: int
) -> None:
    limits = AttemptLimits(max_turns=3, context_tokens=100, step_timeout_s=30)
    (trajectory,) = await manager(environment, limits=limits).run()
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (
        Outcome.TIMED_OUT,
        Reason.ENVIRONMENT_TIMEOUT,
    )
    assert "took over 30 s" in (trajectory.error or "")
    assert len(trajectory.token_ids) == tokens
    assert environment.closed == 1
    if tokens:
        assert trajectory.turns[0].step_s == 30


async def test_calls_share_one_timer_and_each_has_the_whole_limit() -> None:
    """59 calls in time, of a second each, and one that hangs."""
    environment = ScriptedEnvironment(*[STAY] * 58, HANG)
    limits = AttemptLimits(max_turns=100, context_tokens=1_000, step_timeout_s=30)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    running = asyncio.create_task(manager(environment, limits=limits).run())
    await asyncio.sleep(20.5)
    assert loop.timers == 3  # the trajectory's limit, that of its calls, and the step's second
    (trajectory,) = await running
    assert (trajectory.outcome, trajectory.error) == (Outcome.TIMED_OUT, "step took over 30 s")
    assert len(trajectory.turns) == 59
    assert trajectory.turns[-1].step_s == 30


async def test_an_adapter_may_say_itself_that_the_environment_timed_out() -> None:
    late = EnvironmentTimeoutError("killed after 3 s")
    (trajectory,) = await manager(ScriptedEnvironment(late)).run()
    assert (trajectory.outcome, trajectory.error) == (Outcome.TIMED_OUT, "killed after 3 s")


async def test_a_trajectory_that_takes_too_long_times_out() -> None:
    limits = AttemptLimits(max_turns=100, context_tokens=10_000, trajectory_timeout_s=8)
    (trajectory,) = await manager(ScriptedEnvironment(*[STAY] * 100), limits=limits).run()
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (
        Outcome.TIMED_OUT,
        Reason.TRAJECTORY_TIMEOUT,
    )
    assert trajectory.finished_at == DAWN + timedelta(seconds=8)
    assert len(trajectory.turns) == 3


async def test_an_engine_that_hangs_times_out_too() -> None:
    limits = AttemptLimits(max_turns=2, context_tokens=100, trajectory_timeout_s=50)
    engine = OneLetterEngine(silent=True)
    (trajectory,) = await manager(ScriptedEnvironment(), engine=engine, limits=limits).run()
    assert (trajectory.outcome, trajectory.reason) == (
        Outcome.TIMED_OUT,
        Reason.TRAJECTORY_TIMEOUT,
    )


async def test_limits_may_be_infinite() -> None:
    limits = AttemptLimits(
        max_turns=10, context_tokens=100, step_timeout_s=math.inf, trajectory_timeout_s=math.inf
    )
    (trajectory,) = await manager(ScriptedEnvironment(DONE), limits=limits).run()
    assert trajectory.outcome is Outcome.COMPLETED


async def test_an_engine_that_fails_keeps_the_tokens_so_far() -> None:
    engine = OneLetterEngine(fail=EngineError("CUDA error"))
    environment = ScriptedEnvironment(DONE)
    (trajectory,) = await manager(environment, engine=engine).run()
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (Outcome.FAILED, Reason.ENGINE_ERROR)
    assert trajectory.error == "CUDA error"
    assert trajectory.token_ids[-1] == ord("x")
    assert environment.closed == 1


@pytest.mark.parametrize(
    ("at", "tokens", "turns"),
    [(0.5, 0, 0), (1.5, 2, 1), (2.5, 3, 1), (3.5, 4, 1), (5.5, 9, 2)],
    ids=["reset", "before a token", "within an action", "step", "second action"],
)
async def test_a_cancellation_ends_it_wherever_it_is(at: float, tokens: int, turns: int) -> None:
    environment = ScriptedEnvironment(STAY, DONE)
    attempt = manager(environment)
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(at)
    attempt.cancel(Cancellation("g1-02", Outcome.STALE, Reason.STALENESS_BOUND))
    attempt.cancel(Cancellation("g1-02", Outcome.CANCELLED, Reason.RUN_STOPPED))
    (trajectory,) = await running
    check_alignment(trajectory)
    assert (trajectory.outcome, trajectory.reason) == (Outcome.STALE, Reason.STALENESS_BOUND)
    assert trajectory.finished_at == DAWN + timedelta(seconds=at)
    assert len(trajectory.token_ids) == tokens
    assert len(trajectory.turns) == turns
    assert environment.closed == 1


async def test_an_environment_that_swallows_the_interruption_does_not_go_on() -> None:
    class Stubborn(ScriptedEnvironment):
        async def _give(self, answer: Answer) -> Any:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                return answer
            return answer

    environment = Stubborn(STAY, DONE)
    attempt = manager(environment)
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(15)
    attempt.cancel(Cancellation("g1-02", Outcome.REDUNDANT, Reason.GROUP_COMPLETE))
    (trajectory,) = await running
    assert trajectory.outcome is Outcome.REDUNDANT
    assert len(environment.actions) == 1
    assert trajectory.finished_at == DAWN + timedelta(seconds=15)
    assert running.cancelling() == 0


async def test_a_cancellation_before_it_runs_spares_the_environment() -> None:
    environment = ScriptedEnvironment(DONE)
    attempt = manager(environment)
    attempt.cancel(Cancellation("g1-02", Outcome.CANCELLED, Reason.RUN_STOPPED))
    (trajectory,) = await attempt.run()
    assert (trajectory.outcome, trajectory.reason) == (Outcome.CANCELLED, Reason.RUN_STOPPED)
    assert environment.seeds == []


async def test_without_permission_nothing_starts() -> None:
    environment = ScriptedEnvironment(DONE)
    refusal = Cancellation("g1-02", Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
    permits = Permits(refuse=refusal)
    (trajectory,) = await manager(environment, admission=permits).run()
    check_alignment(trajectory)
    assert permits.asked == [("g1-02", "host")]
    assert (trajectory.outcome, trajectory.reason) == (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
    assert trajectory.token_ids == ()
    assert trajectory.policy_version_start is None
    assert environment.seeds == []


async def test_the_first_token_is_reported_once_and_at_once() -> None:
    permits = Permits()
    await manager(ScriptedEnvironment(STAY, DONE), admission=permits).run()
    assert permits.reports == [(2.0, "g1-02", 0)]


async def test_a_scheduler_that_does_not_answer_the_report_delays_nothing() -> None:
    permits = Permits(deaf=True)
    (trajectory,) = await manager(ScriptedEnvironment(DONE), admission=permits).run()
    assert trajectory.outcome is Outcome.COMPLETED
    assert len(asyncio.all_tasks()) == 1, "nothing is left behind"


async def test_a_task_that_is_cancelled_from_outside_is_cancelled_and_closes() -> None:
    environment = ScriptedEnvironment(HANG)
    running = asyncio.create_task(manager(environment).run())
    await asyncio.sleep(10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert environment.closed == 1


@pytest.mark.parametrize("at", [0.5, 2.5], ids=["reset", "generation"])
async def test_an_interruption_does_not_swallow_a_cancellation_from_outside(at: float) -> None:
    attempt = manager(ScriptedEnvironment(DONE))
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(at)
    attempt.cancel(Cancellation("g1-02", Outcome.STALE, Reason.STALENESS_BOUND))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("close", "error"),
    [
        (OSError("socket gone"), "close raised OSError: socket gone"),
        (HANG, "close took over 60 s"),
    ],
)
async def test_what_goes_wrong_in_close_is_told_and_changes_nothing(
    close: Answer, error: str
) -> None:
    (trajectory,) = await manager(ScriptedEnvironment(DONE, close=close)).run()
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.error == error


async def test_kept_token_sets_are_stored_for_generated_tokens() -> None:
    class Nucleus(OneLetterEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
            yield Chunk("r", 0, (5, 0), (-0.1, -0.2), (0, 0), FinishReason.STOP, ((5, 6), (0,)))

    sampling = Sampling(top_p=0.9, max_tokens=4)
    (trajectory,) = await manager(
        ScriptedEnvironment(DONE), engine=Nucleus(), sampling=sampling
    ).run()
    assert trajectory.kept_token_ids == ((5, 6), (0,))
    (plain,) = await manager(ScriptedEnvironment(DONE)).run()
    assert plain.kept_token_ids is None


@pytest.mark.parametrize("name", ["max_turns", "context_tokens", "step_timeout_s"])
def test_limits_of_nothing_are_refused(name: str) -> None:
    values: dict[str, Any] = {"max_turns": 1, "context_tokens": 1} | {name: 0}
    with pytest.raises(SettingsError, match=f"{name} should be greater than"):
        AttemptLimits(**values)


@pytest.mark.parametrize("cleared_at", [0.0, 0.5, 7.0])
async def test_an_environment_that_is_reset_ahead_waits_for_its_clearance(
    cleared_at: float,
) -> None:
    """The wait takes none of the time of the trajectory, and the message may come at any moment."""
    limits = AttemptLimits(context_tokens=100, step_timeout_s=60, trajectory_timeout_s=5)
    engine = OneLetterEngine()
    attempt = manager(
        ScriptedEnvironment(DONE), engine=engine, admission=Permits(ResetOnly()), limits=limits
    )
    if cleared_at == 0.0:
        attempt.clear()
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(cleared_at)
    assert not engine.requests
    attempt.clear()
    (trajectory,) = await running
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.reset_s == 1.0
    lived = (trajectory.finished_at - trajectory.created_at).total_seconds()
    assert lived == max(cleared_at, 1.0) + sum(t.generate_s + t.step_s for t in trajectory.turns)


async def test_an_attempt_that_waits_for_its_clearance_can_be_cancelled() -> None:
    environment = ScriptedEnvironment(DONE)
    attempt = manager(environment, admission=Permits(ResetOnly()))
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(10)
    attempt.cancel(Cancellation("g1-02", Outcome.CANCELLED, Reason.RUN_STOPPED))
    (trajectory,) = await running
    assert (trajectory.outcome, trajectory.token_ids) == (Outcome.CANCELLED, ())
    assert environment.closed == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_attempt_of_which_a_restarted_scheduler_never_heard_asks_again(
    cancelled: bool,
) -> None:
    permits = Permits(ResetOnly())
    running = asyncio.create_task(manager(ScriptedEnvironment(DONE), admission=permits).run())
    await asyncio.sleep(50)
    over = Cancellation("g1-02", Outcome.CANCELLED, Reason.RUN_STOPPED)
    permits.refuse = over if cancelled else None
    (trajectory,) = await running
    assert trajectory.outcome is (Outcome.CANCELLED if cancelled else Outcome.COMPLETED)
    assert len(permits.asked) == 4
