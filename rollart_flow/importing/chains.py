"""The token chain of a conversation that others had, as a policy's chat template renders it.

The invariants: what the assistant said is an action, unless it has the weight 0; its logprobs are
NaN, since nobody knows them; all lists stay aligned, as in `control.rollout.recorder`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rollart_flow.control.rollout.conversing import Transcript
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.gateway.core.call_ids import CallIds
from rollart_flow.importing.forms import ImportedConversation, Said
from rollart_flow.importing.records import BadRecordError, ImportRecord
from rollart_flow.importing.tokens import VERSION, record_tokens
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.types import (
    Assignment,
    FinishReason,
    Generation,
    Message,
    Role,
    Sampling,
    Task,
    Trajectory,
)

ENV_VERSION = "imported"
_UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """The place of a chain in the new run, and where it comes from."""

    trajectory_id: str
    group_id: str
    attempt: int
    """Index in the group."""
    domain: str
    record: ImportRecord


def chain_of(
    conversation: ImportedConversation, codec: TextCodec, place: ChainPlace, context: int
) -> Trajectory:
    """Return a conversation as a trajectory.

    Args:
        conversation: the conversation, as messages or as tokens.
        codec: codec of the policy.
        place: its place in the run.
        context: most tokens of a chain.

    Raises:
        BadRecordError: the chat template refuses it, the policy lacks a token, or it is too long.
    """
    recorder = Recorder()
    untrained: list[tuple[int, int]] = []
    columns: dict[str, Any] = {}
    try:
        if conversation.chain is not None:
            record_tokens(recorder, conversation.chain, codec)
        else:
            columns = _record_messages(recorder, conversation, codec, untrained)
    except (TemplateRefusedError, SettingsError) as error:
        raise BadRecordError(str(error)) from error
    if len(recorder) > context:
        raise BadRecordError(
            f"it has {len(recorder)} tokens; the policy's context ends at {context}"
        )
    made = _scored(_trajectory(recorder, conversation, place, columns), conversation)
    return _without(made, untrained) if untrained else made


def _record_messages(
    recorder: Recorder,
    conversation: ImportedConversation,
    codec: TextCodec,
    untrained: list[tuple[int, int]],
) -> dict[str, Any]:
    """Record what was said, and the spans of answers without a weight; return further columns."""
    talk = codec.converse(conversation.tools)
    for number, (shown, answer) in enumerate(_turns(conversation.said)):
        recorder.observe(shown, talk.observe(shown, ended=recorder.ended), number)
        start, token_ids = len(recorder), talk.answer(answer.message, ended=answer.ended)
        recorder.act(_generation(token_ids, ended=answer.ended), answer.message.as_action(), 0.0)
        recorder.end_turn()
        if not answer.trained:
            untrained.append((start, len(recorder)))
    columns = Transcript(conversation.tools or None).columns(recorder)
    return {**columns, "rewritten_at": talk.rewritten_at(recorder.token_ids)}


def _trajectory(
    recorder: Recorder,
    conversation: ImportedConversation,
    place: ChainPlace,
    columns: dict[str, Any],
) -> Trajectory:
    """Return the recorded chain without a reward."""
    now, record = datetime.now(UTC), place.record
    origin = {"file": record.file.name, "number": record.number, **conversation.about}
    task_id = conversation.about.get("task_id", place.group_id)
    task = Task(task_id, place.domain, json.dumps(origin))
    return recorder.trajectory(
        Assignment(
            place.trajectory_id, place.group_id, task, place.attempt, 0, sampling=Sampling()
        ),
        AttemptResult(conversation.outcome),
        created_at=now,
        finished_at=now,
        reset_s=0.0,
        env_version=ENV_VERSION,
        solved=conversation.solved,
        columns=columns,
    )


def _scored(made: Trajectory, conversation: ImportedConversation) -> Trajectory:
    """Return a trajectory with the reward of its record, if it states one."""
    if conversation.reward is None:
        return made
    return replace(
        made,
        reward=conversation.reward,
        reward_parts=conversation.reward_parts,
        scored_at=made.finished_at,
    )


def _turns(said: Sequence[Said]) -> Iterator[tuple[tuple[Message, ...], Said]]:
    """Yield what the assistant was shown, and what it answered, with ids that templates take."""
    ids, shown = CallIds(), list[Message]()
    for each in said:
        message = ids.in_chain(each.message)
        if message.role is Role.ASSISTANT:
            yield tuple(shown), replace(each, message=message)
            shown = []
        else:
            shown.append(message)


def _generation(token_ids: tuple[int, ...], *, ended: bool) -> Generation:
    count, why = len(token_ids), FinishReason.STOP if ended else FinishReason.LENGTH
    return Generation(token_ids, (_UNKNOWN,) * count, (VERSION,) * count, why)


def _without(made: Trajectory, spans: Sequence[tuple[int, int]]) -> Trajectory:
    """Return a trajectory in which some actions are observed, not trained on."""
    mask, logprobs = list(made.action_mask), list(made.logprobs)
    versions = list(made.token_versions)
    for start, end in spans:
        count = end - start
        mask[start:end], logprobs[start:end] = [False] * count, [0.0] * count
        versions[start:end] = [-1] * count
    trains = any(mask)
    return replace(
        made,
        action_mask=tuple(mask),
        logprobs=tuple(logprobs),
        token_versions=tuple(versions),
        policy_version_start=VERSION if trains else None,
        policy_version_end=VERSION if trains else None,
    )
