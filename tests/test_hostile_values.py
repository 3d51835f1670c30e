"""Whatever users' code or a model returns is an outcome with a short reason, and a row of a table.

The tests throw values of every kind at each place where they come in: lone surrogates, arrays for
scalars, NaN, infinities, objects whose text raises, errors of ten million characters.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.envs.adapter import InlineEnvironment
from rollart_flow.envs.base import Environment
from rollart_flow.errors import ContractError, RunFailedError
from rollart_flow.operators.filters import NamedFilter, group_refusal, refusals
from rollart_flow.operators.tasks import task_stream
from rollart_flow.rewards.score import Scorer, score
from rollart_flow.rows import events_table, from_ipc, to_ipc, trajectories_table
from rollart_flow.serverless.contract import Answer, decode, encode
from rollart_flow.simulation import run
from rollart_flow.store import RunInfo, RunWriter, open_run
from rollart_flow.text import ERROR_CHARACTERS, one_line, storable, trace
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    Event,
    EventKind,
    FinishReason,
    GenerationRequest,
    Outcome,
    Reason,
    Sampling,
    Task,
    Trajectory,
)
from rollart_flow.types.verdict_checks import REPORTED
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import trajectory, turn
from tests.dst.environments import LetterCodec, wall
from tests.dst.log import EventLog

VOCABULARY = 128
MANY = 10_000_000


class Mute:
    """An object without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class MuteError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
"""Any text, with lone surrogates and control characters."""
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, math.nan, math.inf, -math.inf, 1e308]),
    st.floats(),
    TEXT,
    st.binary(max_size=4),
)
ODD = st.sampled_from(
    [np.zeros(2), np.zeros(()), np.float32(1), np.array(["a"]), Mute(), [], {}, (1, 2), {"a": 1}]
)
VALUES = st.one_of(SCALARS, ODD)
VERDICTS = st.fixed_dictionaries(
    {"key": st.one_of(TEXT, VALUES)},
    optional=dict.fromkeys(("kind", "passed", "value", "seconds", "message", "more"), VALUES),
)
ERRORS = st.sampled_from(
    [ValueError("x" * MANY), ValueError("\ud83d"), MuteError(), SystemExit(3), KeyError(Mute())]
)
CASES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stored(*trajectories: Trajectory) -> pa.Table:
    """The rows, after their way to the buffer; their errors are short."""
    for each in trajectories:
        assert len(each.error or "") <= ERROR_CHARACTERS
        assert "\n" not in (each.error or "")
    table = from_ipc(to_ipc(trajectories_table(trajectories)))
    table.validate(full=True)
    assert len(table.to_pylist()) == len(trajectories)
    return table


class Scripted(Environment):
    """Answers reset and step with given values, or raises them."""

    inline = True
    version = "scripted/1"

    def __init__(self, first: object, then: object) -> None:
        self._first, self._then = first, then

    def reset(self, seed: int, task: str) -> Any:
        return self._give(self._first)

    def step(self, action: str) -> Any:
        return self._give(self._then)

    def _give(self, answer: object) -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Model:
    """An engine that answers each request with one chunk."""

    worker = "engine"
    hardware = "H20"
    stands_for = frozenset(("H20",))

    def __init__(self, token_ids: Any, logprobs: Any, versions: Any) -> None:
        self._lists = token_ids, logprobs, versions
        self.requests = 0

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests += 1
        yield Chunk(request.request_id, 0, *self._lists, FinishReason.STOP)

    async def abort(self, request_id: str) -> None:
        """Nothing to end."""


class Only:
    """A domain with one environment."""

    environment = Scripted

    def __init__(self, environment: Scripted) -> None:
        self._environment = environment

    def make(self) -> Scripted:
        return self._environment


def attempt(environment: Scripted, model: Model | None = None, events: Any = None) -> Trajectory:
    """One attempt in an environment that runs in the event loop."""
    domain: Any = Only(environment)
    manager = EnvManager(
        Assignment("g-00", "g", Task("t", "d"), 0, 1, Sampling(max_tokens=4)),
        lambda: InlineEnvironment(domain),
        LetterCodec(),
        LLMProxy(
            [model or Model((1,), (-0.5,), (0,))], events or EventLog(), vocabulary=VOCABULARY
        ),
        AttemptLimits(max_turns=2, context_tokens=100, step_timeout_s=60),
        wall,
    )
    return run(manager.run())[0]


@CASES
@given(
    answer=st.one_of(
        VALUES, ERRORS, st.tuples(VALUES, VALUES), st.tuples(TEXT, st.dictionaries(TEXT, VALUES))
    )
)
def test_a_reset(answer: object) -> None:
    """An EnvManager needs no process, so that each case takes a millisecond."""
    found = attempt(Scripted(answer, ("", 1.0, True, False, {})))
    stored(found)
    assert found.outcome is Outcome.COMPLETED or found.error


@CASES
@given(error=ERRORS)
def test_a_traceback_in_a_log(error: BaseException) -> None:
    said = trace(error)
    assert len(said.encode()) < 50_000
    assert type(error).__name__ in said or said.startswith("…")


@CASES
@given(
    answer=st.one_of(
        VALUES,
        ERRORS,
        st.tuples(VALUES, VALUES, VALUES, VALUES, VALUES),
        st.tuples(
            TEXT,
            st.just(1.0),
            st.just(True),
            st.just(False),
            st.one_of(
                st.fixed_dictionaries({"success": VALUES}),
                st.dictionaries(
                    st.sampled_from(sorted(REPORTED)), st.one_of(VALUES, st.lists(VALUES))
                ),
                st.fixed_dictionaries({"verdicts": st.lists(VERDICTS)}),
            ),
        ),
    )
)
def test_a_step(answer: object) -> None:
    found = attempt(Scripted(("go", {}), answer))
    stored(found)
    if (verdicts := verdicts_table([found])) is not None:
        assert from_ipc(to_ipc(verdicts)).num_rows
    assert found.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED) or found.error
    assert found.solved in (None, True, False)


def test_an_array_for_success_names_itself() -> None:
    answer = ("", 1.0, True, False, {"success": np.zeros(3)})
    found = attempt(Scripted(("go", {}), answer))
    assert (found.outcome, found.reason) == (Outcome.FAILED, Reason.ENVIRONMENT_ERROR)
    assert "returned ndarray as info['success']; it must be a bool" in (found.error or "")


def test_an_observation_with_a_surrogate_is_trained_on() -> None:
    found = attempt(Scripted(('{"tool":"\ud83d"}', {}), ("", 1.0, True, False, {})))
    assert found.outcome is Outcome.COMPLETED
    assert found.turns[0].observation == '{"tool":"\ufffd"}'
    assert stored(found)["turns"][0].as_py()[0]["observation"] == '{"tool":"\ufffd"}'


LOGPROBS = st.one_of(st.floats(), st.sampled_from([5.0, -60.0, 0.0, 1e-9]), VALUES)


@CASES
@given(
    ids=st.lists(st.one_of(st.integers(-2, VOCABULARY + 1), VALUES), max_size=6),
    logprobs=st.lists(LOGPROBS, max_size=6),
    versions=st.lists(st.one_of(st.integers(0, 3), VALUES), max_size=6),
    aligned=st.booleans(),
)
def test_a_chunk_of_an_engine(
    ids: list[Any], logprobs: list[Any], versions: list[Any], aligned: bool
) -> None:
    if aligned:
        count = min(len(ids), len(logprobs), len(versions))
        ids, logprobs, versions = ids[:count], logprobs[:count], versions[:count]
    model = Model(tuple(ids), tuple(logprobs), tuple(versions))
    found = attempt(Scripted(("go", {}), ("", 1.0, True, False, {})), model)
    stored(found)
    assert all(0 <= token < VOCABULARY for token in found.token_ids)
    assert all(-math.inf < logprob <= 1e-3 for logprob in found.logprobs)
    assert found.outcome is not Outcome.FAILED or found.reason is Reason.ENGINE_ERROR


@pytest.mark.parametrize(
    ("ids", "logprobs", "versions", "said"),
    [
        ((1, 2), (-1.0, math.nan), (0, 0), "the logprob nan; it must be finite and at most 0"),
        ((1, 2), (-1.0, -math.inf), (0, 0), "the logprob -inf"),
        ((1, 2), (5.0, -1.0), (0, 0), "the logprob 5.0"),
        (
            (1, VOCABULARY),
            (-1.0, -1.0),
            (0, 0),
            "token ids from 1 to 128 are not in the vocabulary",
        ),
        ((-1,), (-1.0,), (0,), "token ids from -1 to -1"),
        ((1,), (-1.0, -1.0), (0,), "a chunk of 1 tokens has 2 logprobs"),
        ((1,) * 10**6, (-1.0,) * 10**6, (0,) * 10**6, "more than 4 tokens"),
        (("a",), (-1.0,), (0,), "a chunk is malformed"),
        ((1,), ("a",), (0,), "a chunk is malformed"),
        ((1,), (-1.0,), (None,), "a chunk is malformed"),
    ],
)
def test_impossible_tokens_fail_their_attempt_and_not_their_worker(
    ids: tuple[Any, ...], logprobs: tuple[Any, ...], versions: tuple[Any, ...], said: str
) -> None:
    model, events = Model(ids, logprobs, versions), EventLog()
    found = attempt(Scripted(("go", {}), ("", 1.0, True, False, {})), model, events)
    assert (found.outcome, found.reason) == (Outcome.FAILED, Reason.ENGINE_ERROR)
    assert said in (found.error or "")
    assert model.requests == 1
    assert events.events == []


@CASES
@given(answer=st.one_of(VALUES, ERRORS, st.tuples(VALUES, st.dictionaries(TEXT, VALUES))))
def test_a_local_reward(answer: Any) -> None:
    async def judge(trajectory: Trajectory) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    scored = trajectory(reward=None, turns=(turn(),))
    found = asyncio.run(Scorer(judge).score(scored, 60.0))
    stored(found)
    assert (found.reward is None) == (found.outcome is Outcome.FAILED)
    assert found.reward is None or math.isfinite(found.reward)


def test_a_reward_in_a_process_may_raise_ten_million_characters() -> None:
    found = asyncio.run(score(trajectory(reward=None), long_error))
    assert found.reason is Reason.REWARD_ERROR
    assert "ValueError: xxx" in (found.error or "")
    stored(found)


def long_error(_: Trajectory) -> float:
    raise ValueError("x" * MANY)


@CASES
@given(
    answer=st.fixed_dictionaries(
        {
            "schema_version": st.just(2),
            "request_id": VALUES,
            "reward": VALUES,
            "parts": st.one_of(VALUES, st.dictionaries(TEXT, SCALARS)),
            "failure": st.one_of(VALUES, st.sampled_from(["function", "late"])),
            "error": VALUES,
        }
    )
)
def test_an_answer_of_a_remote_reward(answer: Mapping[str, Any]) -> None:
    try:
        found = Answer.from_json(answer)
    except ContractError:
        return
    assert found.error is None or isinstance(found.error, str)
    if found.reward is not None and math.isfinite(found.reward):
        decode(encode(found.as_json()))


@CASES
@given(task_id=VALUES, domain=st.one_of(st.just("d"), VALUES), payload=VALUES)
def test_a_task(task_id: Any, domain: Any, payload: Any) -> None:
    stream = task_stream([(Task(task_id, domain, payload),)], seed=0, domains=["d"])
    try:
        task = next(stream)
    except RunFailedError as error:
        said = str(error)
    else:
        stored(trajectory(task_id=task.task_id, domain=task.domain, task=task.payload))
        return
    assert said.startswith("tasks: ")
    assert len(said) < 2 * ERROR_CHARACTERS


@CASES
@given(subject=TEXT, detail=st.dictionaries(TEXT, TEXT))
def test_an_event(subject: str, detail: Mapping[str, str]) -> None:
    event = Event(EventKind.DROP, subject, domain=subject, detail=detail)
    (row,) = from_ipc(to_ipc(events_table([(datetime.now(UTC), event)]))).to_pylist()
    assert row["subject"] == storable(subject)


@CASES
@given(tasks=st.lists(TEXT, min_size=1, max_size=4))
def test_a_filter_that_raises_refuses_the_row_that_it_raises_for(tasks: list[str]) -> None:
    whole = NamedFilter("whole", pl.col("task").str.to_integer() >= 0)
    rows = trajectories_table([trajectory(attempt=n, task=t) for n, t in enumerate(["7", *tasks])])
    found = refusals([whole], rows)
    assert found[0] is None
    for task, by in zip(tasks, found[1:], strict=True):
        readable = task.strip().lstrip("+-").isascii() and task.strip().lstrip("+-").isdigit()
        assert readable or (by or "").startswith("whole")
        assert len(by or "") <= ERROR_CHARACTERS


def test_a_filter_of_groups_that_raises_refuses_the_group() -> None:
    varied = NamedFilter("varied", pl.col("task").str.to_integer().max().over("group_id") > 0)
    good = trajectories_table([trajectory(attempt=n, task="7") for n in range(2)])
    bad = trajectories_table([trajectory(attempt=n, task="x") for n in range(2)])
    assert group_refusal([varied], good) is None
    assert "varied (raised " in (group_refusal([varied], bad) or "")


def test_rows_with_surrogates_are_committed_and_read(tmp_path: Path) -> None:
    info = RunInfo(name="mine", pipeline="p", seed=0)
    half = "\ud83d"
    made = trajectory(
        error=half,
        task=half,
        reward_parts={half: 1.0},
        turns=(turn(action=half, observation=half),),
    )
    with RunWriter.create(str(tmp_path / "mine"), info) as writer:
        writer.commit("trajectories", trajectories_table([made]))
        writer.commit("events", events_table([(datetime.now(UTC), Event(EventKind.RUN, half))]))
    opened = open_run(str(tmp_path / "mine"))
    (row,) = opened.trajectories.collect().to_dicts()
    assert row["error"] == row["task"] == row["reward_parts"][0]["name"] == "\ufffd"
    assert opened.events.collect()["subject"].to_list() == ["\ufffd"]


@CASES
@given(text=st.one_of(VALUES, TEXT.map(lambda text: text * 1000)))
def test_one_line(text: object) -> None:
    line = one_line(text)
    assert len(line) <= ERROR_CHARACTERS
    assert line == " ".join(line.split())
    line.encode()


def test_an_error_is_cut_where_it_becomes_too_long() -> None:
    assert one_line("ab  c\nd") == "ab c d"
    assert one_line("x" * MANY) == "x" * (ERROR_CHARACTERS - 1) + "…"
    assert (
        replace(trajectory(), error=one_line(Mute())).error == "Mute, whose text raised ValueError"
    )
