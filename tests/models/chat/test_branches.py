"""Branches of real chat templates: cut chains, summaries, and history as it is rendered."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollart_flow.control.rollout.dialogue import Dialogue
from rollart_flow.control.rollout.env_checks import StepAnswer
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.settings import ChatSettings
from rollart_flow.replay.spoken import recorded_turns, spoken_again
from rollart_flow.types import (
    Action,
    AttemptLimits,
    FinishReason,
    Generation,
    Message,
    Outcome,
    Role,
    Trajectory,
)
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import message_from_json, tool_result, user
from tests.control.rollout.test_dialogue import ASSIGNMENT
from tests.dst.environments import DAWN
from tests.models.chat.families import GLM, GPT_OSS, QWEN3, TOOLS, Family
from tests.models.chat.test_conversation import (
    ADD,
    REWRITE,
    WITH_TOOLS,
    called,
    opening,
    said,
)

CUT = "cut(at=0.3, keep=0.2)"
SUMMARY = "Summarize what was"


class Answers:
    """Answers calls with their results, and text with a question."""

    call_s = 0.0

    async def step(self, action: str | Action) -> StepAnswer:
        assert isinstance(action, Action)
        results = tuple(tool_result(call, "3") for call in action.tool_calls)
        return StepAnswer(results or (user("And then?"),), 0.0, False, False, {})


def talked(
    family: Family, codec: TextCodec, context: str | None, actions: Sequence[Message], tokens: int
) -> list[Trajectory]:
    """The branches of a dialogue in which the policy says all actions."""
    limits = AttemptLimits(context=context, context_tokens=tokens)
    dialogue = Dialogue(codec, limits)
    shown: StepObservation = opening(family)
    dialogue.begin(tuple(opening(family)), TOOLS)
    for number, action in enumerate(actions):
        dialogue.observe(number, shown)
        asked = json.dumps([each.as_json() for each in dialogue.recorder.own[-1].observation])  # type: ignore[union-attr]
        spoken = said("All was done.") if SUMMARY in asked else action
        ids = family.generated(opening(family), spoken, TOOLS)
        count = len(ids)
        stop = FinishReason.STOP
        made = dialogue.act(Generation(ids, (-1.0,) * count, (3,) * count, stop), 0.0)
        shown = asyncio.run(dialogue.answer(Answers(), made)).observation
    return [
        recorder.trajectory(
            ASSIGNMENT, AttemptResult(Outcome.COMPLETED), created_at=DAWN, finished_at=DAWN,
            reset_s=0.0, env_version="", solved=None, columns=columns,
        )
        for recorder, columns in dialogue.rows("g1-00")
    ]  # fmt: skip


@pytest.mark.parametrize("context", [CUT, "summarize(at=0.28)"])
@pytest.mark.parametrize("family", WITH_TOOLS.values(), ids=WITH_TOOLS)
def test_a_shortened_chain_is_what_the_template_renders(family: Family, context: str) -> None:
    length = len(family.ids(family.rendered(opening(family), TOOLS)))
    actions = [called(ADD), said("Sure."), called(ADD), called(ADD), *[said("on")] * 8]
    branches = talked(family, family.codec, context, actions, 4 * length)
    assert len(branches) > 1
    for branch in branches:
        spoken = spoken_again(branch, family.codec)
        for turn, again, recorded in zip(branch.turns, spoken, recorded_turns(branch), strict=True):
            shown = branch.token_ids[turn.start : turn.start + len(again.observation_ids)]
            assert shown == again.observation_ids
            assert again.action == recorded.action
        if family not in (*REWRITE, GLM, GPT_OSS):
            assert branch.rewritten_at is None


def test_history_is_what_the_template_renders() -> None:
    files = {**QWEN3.files, "chat.json": ChatSettings(history="branch").as_text()}
    codec = TextCodec(files)
    thoughts = [said(text, thinking="Hm and so on") for text in ("one", "two", "three")]
    actions = [*thoughts[:2], replace(called(ADD), thinking="so"), thoughts[2]]
    branches = talked(QWEN3, codec, None, actions, 50_000)
    assert [len(each.turns) for each in branches] == [1, 1, 2], "thinking stays between calls"
    for branch in branches[1:]:
        forms = json.loads(branch.messages or "")
        shown = [message_from_json(form) for form in forms]
        first = next(at for at, form in enumerate(forms) if form["turn"] == branch.branch)
        until = next(at for at in range(first, len(shown)) if shown[at].role is Role.ASSISTANT)
        start = branch.action_mask.index(True)
        wanted = QWEN3.ids(QWEN3.rendered(shown[:until], TOOLS))
        assert branch.token_ids[:start] == wanted
        assert branch.shared_tokens > 0
    kept = talked(QWEN3, QWEN3.codec, None, actions, 50_000)
    assert len(kept) == 1
    assert kept[0].rewritten_at is not None
