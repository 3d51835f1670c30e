"""The token chain of a conversation that others had, as a policy's chat template renders it.

The invariants: what the assistant said is an action, unless it has the weight 0; its logprobs are
NaN, since nobody knows them; all lists stay aligned, as in `control.rollout.recorder`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rollart_flow.control.rollout.conversing import Transcript
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.gateway.core.call_ids import CallIds
from rollart_flow.importing.forms import ImportedConversation, Said
from rollart_flow.importing.records import BadRecordError, ImportRecord
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

VERSION = 0
"""Policy version of the actions: that of the policy whose chat template rendered them."""
ENV_VERSION = "imported"
_UNKNOWN = math.nan


def chain_of(
    conversation: ImportedConversation,
    codec: TextCodec,
    *,
    name: str,
    group: str,
    attempt: int,
    domain: str,
    record: ImportRecord,
    context: int,
) -> Trajectory:
    """Return a conversation as a trajectory.

    Args:
        conversation: the conversation.
        codec: codec of the policy.
        name: id of the trajectory.
        group: id of its group.
        attempt: index in the group.
        domain: its domain.
        record: the record that it comes from.
        context: most tokens of a chain.

    Raises:
        BadRecordError: the chat template refuses it, or it is too long.
    """
    recorder, tools = Recorder(), conversation.tools
    untrained: list[tuple[int, int]] = []
    try:
        talk = codec.converse(tools)
        for number, (shown, answer) in enumerate(_turns(conversation.said)):
            recorder.observe(shown, talk.observe(shown, ended=recorder.ended), number)
            start, token_ids = len(recorder), talk.answer(answer.message, ended=answer.ended)
            recorder.act(
                _generation(token_ids, ended=answer.ended), answer.message.as_action(), 0.0
            )
            recorder.end_turn()
            if not answer.trained:
                untrained.append((start, len(recorder)))
    except (TemplateRefusedError, SettingsError) as error:
        raise BadRecordError(str(error)) from error
    if len(recorder) > context:
        raise BadRecordError(
            f"it has {len(recorder)} tokens; the policy's context ends at {context}"
        )
    columns = Transcript(tools or None).columns(recorder)
    columns["rewritten_at"] = talk.rewritten_at(recorder.token_ids)
    now = datetime.now(UTC)
    origin = {"file": record.file.name, "number": record.number, **conversation.about}
    task = Task(conversation.about.get("task_id", group), domain, json.dumps(origin))
    made = recorder.trajectory(
        Assignment(name, group, task, attempt, 0, sampling=Sampling()),
        AttemptResult(conversation.outcome),
        created_at=now,
        finished_at=now,
        reset_s=0.0,
        env_version=ENV_VERSION,
        solved=conversation.solved,
        columns=columns,
    )
    scored = conversation.reward is not None
    made = replace(
        made,
        reward=conversation.reward,
        reward_parts=conversation.reward_parts if scored else None,
        scored_at=now if scored else None,
    )
    return _without(made, untrained) if untrained else made


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
