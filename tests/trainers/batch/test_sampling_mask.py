"""What is trained on, from the environment's text to the trainer's batch, with real codecs.

An EnvManager drives an episode of an inline environment, its trajectory becomes a row, and the row
a `TrainingBatch`. Only the engine is scripted, since what the policy says is given here.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.algorithms import grpo
from rollart_flow.algorithms.advantages import StepReturns
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.envs.adapter import InlineEnvironment
from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from rollart_flow.rewards.base import environment_reward
from rollart_flow.rows import samples, trajectories_table
from rollart_flow.simulation import run
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch
from rollart_flow.types import (
    Assignment,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Outcome,
    Sampling,
    Split,
    Task,
    Trajectory,
)
from tests.dst.environments import wall
from tests.dst.log import EventLog
from tests.models.chat.test_codec import CHATML, WORDS, byte_level

ROOM = 64
"""Most tokens of one action."""
CODECS = {
    "tiny": TextCodec(tiny_tokenizer_files(WORDS, 4096)),
    "chatml": byte_level({"chat_template": CHATML}),
}
THOUGHT = "<think>left is ice</think>up"
TOOL_ERROR = "Error: no tool 'up'; did you mean <tool_call>?"


class Shell(Environment):
    """Says one line after the other, each for a reward of its number; an exception is raised."""

    inline = True
    version = "shell/1"

    def __init__(self, lines: Sequence[str | Exception]) -> None:
        self._lines = list(lines)
        self.turn = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        return str(self._lines[0]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.turn += 1
        if self.turn == len(self._lines):
            return "", float(self.turn), True, False, {}
        line = self._lines[self.turn]
        if isinstance(line, Exception):
            raise line
        return line, float(self.turn), False, False, {}


@dataclass(frozen=True)
class Shells(Domain):
    name: ClassVar[str] = "shell"
    environment: ClassVar[type[Environment]] = Shell
    lines: tuple[str | Exception, ...] = ()

    def make(self) -> Shell:
        return Shell(self.lines)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(())


class Speaker:
    """Says one text after the other, with the stop token where its room is not over before."""

    worker = "engine"
    hardware = "CPU"
    stands_for = frozenset(("CPU",))

    def __init__(self, codec: TextCodec, texts: Sequence[str]) -> None:
        self._codec = codec
        self._texts = list(texts)
        self.drawn: list[int] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        whole = (*self._codec.encode(self._texts.pop(0)), self._codec.stop_token_ids[0])
        tokens = whole[: request.sampling.max_tokens]
        self.drawn += tokens
        reason = FinishReason.STOP if tokens == whole else FinishReason.LENGTH
        count = len(tokens)
        yield Chunk(request.request_id, 0, tokens, (-0.5,) * count, (3,) * count, reason)

    async def abort(self, request_id: str) -> None:
        pass


def episode(
    codec: TextCodec, lines: Sequence[str | Exception], actions: Sequence[str], room: int = ROOM
) -> tuple[Trajectory, list[int]]:
    """A scored trajectory, and the tokens that the engine drew for it."""
    engine = Speaker(codec, actions)
    sampling = Sampling(max_tokens=room, stop_token_ids=codec.stop_token_ids)
    manager = EnvManager(
        Assignment("g00000000-00", "g00000000", Task("t", "shell"), 0, 1, sampling),
        lambda: InlineEnvironment(Shells(tuple(lines))),
        codec,
        LLMProxy([engine], EventLog()),
        AttemptLimits(max_turns=len(lines) + 1, context_tokens=4096),
        wall,
    )
    (trajectory,) = run(manager.run())
    score = environment_reward(trajectory)
    assert isinstance(score, float | int)
    return replace(trajectory, reward=float(score)), engine.drawn


def trained(trajectory: Trajectory) -> TrainingBatch:
    """What the trainer has of a trajectory."""
    rows = trajectories_table([trajectory])
    found = StepReturns(gamma=1.0)(rows).values
    advantages = pa.array([each.tolist() for each in found], pa.list_(pa.float32()))
    weights = pa.array(grpo().weights(rows), pa.float64())
    return read_batch(rows.append_column("advantage", advantages).append_column("weight", weights))


def targets(codec: TextCodec, batch: TrainingBatch) -> list[int]:
    """Token ids that a loss is computed for."""
    micro = batch.micro_batch(pa.array([0]).to_numpy(), codec.vocab_size)
    found: list[int] = micro.targets.tolist()
    return found


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> TextCodec:
    return CODECS[request.param]


def test_exactly_what_the_engine_drew_is_trained_on(codec: TextCodec) -> None:
    trajectory, drawn = episode(codec, ["go", "on", "end"], ["up", THOUGHT, "down"])
    assert trajectory.outcome is Outcome.COMPLETED
    assert targets(codec, trained(trajectory)) == drawn
    assert sum(trajectory.action_mask) == len(drawn) < len(trajectory.token_ids)


def test_observations_are_never_trained_on(codec: TextCodec) -> None:
    """Also where they repeat an action word for word."""
    trajectory, drawn = episode(codec, ["up", "up", "up"], ["up", "up", "up"])
    batch = trained(trajectory)
    seen = [codec.encode_observation("up", first=turn == 0) for turn in range(3)]
    assert len(batch.tokens.values) == len(drawn) + sum(map(len, seen))
    at = 0
    for observation in seen:
        assert not set(range(at, at + len(observation))) & set(batch.actions.values.tolist())
        at += len(observation) + len(codec.encode("up")) + 1


def test_tool_errors_are_never_trained_on(codec: TextCodec) -> None:
    call = '<tool_call>{"name": "up"}</tool_call>'
    trajectory, drawn = episode(codec, ["go", TOOL_ERROR], [call, "sorry"])
    assert trajectory.turns[1].observation == TOOL_ERROR
    stop = codec.stop_token_ids[0]
    assert targets(codec, trained(trajectory)) == drawn
    assert drawn == [*codec.encode(call), stop, *codec.encode("sorry"), stop]
    error = codec.encode_observation(TOOL_ERROR, first=False)
    start = trajectory.turns[1].start
    assert trajectory.token_ids[start : start + len(error)] == error
    assert not any(trajectory.action_mask[start : start + len(error)])


def test_an_environment_that_raises_is_never_trained_on(codec: TextCodec) -> None:
    trajectory, _ = episode(codec, ["go", OSError("the tool died")], ["up", "down"])
    assert trajectory.outcome is Outcome.FAILED
    assert "the tool died" not in codec.decode(trajectory.token_ids)
    (sample,) = samples(trajectories_table([trajectory]))
    assert not sample.trainable


def test_thinking_is_always_trained_on(codec: TextCodec) -> None:
    trajectory, _ = episode(codec, ["go"], [THOUGHT])
    found = targets(codec, trained(trajectory))
    assert found == [*codec.encode(THOUGHT), codec.stop_token_ids[0]]
    assert codec.decode(found) == THOUGHT


def test_thinking_that_was_cut_off_is_trained_on_and_its_end_marker_is_not(
    codec: TextCodec,
) -> None:
    """The codec ends the turn for the template's sake; the policy never drew that token."""
    trajectory, drawn = episode(codec, ["go", "on"], [THOUGHT, "up"], room=6)
    stop = codec.stop_token_ids[0]
    assert trajectory.turns[0].finish_reason == FinishReason.LENGTH
    assert drawn == [*codec.encode(THOUGHT)[:6], *codec.encode("up"), stop]
    assert targets(codec, trained(trajectory)) == drawn
    after = trajectory.turns[1].start
    assert trajectory.token_ids[after] == stop
    assert not trajectory.action_mask[after]


def test_the_token_that_ends_an_action_is_trained_on(codec: TextCodec) -> None:
    trajectory, _ = episode(codec, ["go", "on"], ["up", "down"])
    ends = [turn.end - 1 for turn in trajectory.turns]
    assert [trajectory.token_ids[end] for end in ends] == [codec.stop_token_ids[0]] * 2
    assert set(ends) <= set(trained(trajectory).actions.values.tolist())


SAID = st.text(st.sampled_from("aeon <>/{}:'"), min_size=0, max_size=8)


@pytest.mark.parametrize("name", CODECS)
@given(turns=st.lists(st.tuples(SAID, SAID), min_size=1, max_size=4), room=st.integers(1, 12))
@settings(max_examples=25)
def test_advantages_reach_the_tokens_of_their_turn(
    name: str, turns: list[tuple[str, str]], room: int
) -> None:
    """Whatever is said: turn t of n is credited with t + 1 + ... + n, and nothing else is."""
    codec = CODECS[name]
    lines, actions = [line for line, _ in turns], [action for _, action in turns]
    trajectory, drawn = episode(codec, lines, actions, room)
    batch = trained(trajectory)
    assert targets(codec, batch) == drawn
    assert (batch.behavior_logprobs == -0.5).all()
    lengths = [min(len(codec.encode(action)) + 1, room) for action in actions]
    expected = [
        float(sum(range(turn + 1, len(turns) + 1)))
        for turn, length in enumerate(lengths)
        for _ in range(length)
    ]
    assert batch.advantages.tolist() == expected
