"""What holds after every session of the gateway, whatever its clients and engines did."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.errors import RollartError
from rollart_flow.gateway.core.calls import ModelAnswer, answer_json
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.rows import Rows
from rollart_flow.types import Assignment, GenerationRequest, Outcome, Reason, Trajectory
from tests.dst.agent_checks import captured_incomplete
from tests.dst.captured_clients import Answered
from tests.gateway.core.rig import CODEC, NOW, check

_MARK = re.compile(r"u\d+\.")
"""Text that one message of a client has."""


class BrokenGuaranteeError(RollartError):
    """Raised where a session broke a guarantee."""


def rows_of(made: Rows, assignment: Assignment) -> list[Trajectory]:
    """The trajectories of a session's rows."""
    return [
        recorder.trajectory(
            assignment, AttemptResult(Outcome.COMPLETED), created_at=NOW, finished_at=NOW,
            reset_s=0.0, env_version="", solved=None, columns=columns,
        )
        for recorder, columns in made
    ]  # fmt: skip


def check_parents(rows: Sequence[Trajectory]) -> None:
    """Every row begins with the tokens of its parent that it says it shares."""
    try:
        wrong = captured_incomplete(rows)
    except IndexError:
        wrong = "there are no rows"
    _hold(wrong is None, "parents", f"{wrong}")


def check_tokens(rows: Sequence[Trajectory], sampled: Mapping[float, tuple[int, int]]) -> None:
    """Every sampled token is in one row with its id, logprob and version."""
    try:
        check(rows, {logprob: token for logprob, (token, _) in sampled.items()})
    except (AssertionError, KeyError) as error:
        raise BrokenGuaranteeError(f"tokens: {error or type(error).__name__}") from error
    for row in rows:
        for logprob, version in zip(row.logprobs, row.token_versions, strict=True):
            if version >= 0 and sampled[logprob][1] != version:
                raise BrokenGuaranteeError(f"versions: {row.trajectory_id} has another version")


def check_calls(
    rows: Sequence[Trajectory],
    exchanges: Sequence[Exchange],
    requests: Sequence[GenerationRequest],
    capture: CaptureLimits,
) -> None:
    """Every call is recorded, samples once, and has the place in its row that it says."""
    sent = Counter(request.request_id for request in requests)
    prompts = {request.request_id: request.prompt_ids for request in requests}
    _hold(max(sent.values(), default=0) <= 1, "samples", "a request went to the engine twice")
    for number, each in enumerate(exchanges):
        _hold(each.number == number, "numbers", f"call {number} has number {each.number}")
        ended = (each.answer is None) != (each.refusal is None)
        _hold(ended, "outcomes", f"call {number} has an answer and a refusal, or neither")
        _hold(not each.mismatches, "bytes", f"call {number} differs in {each.mismatches} tokens")
        if each.branch is None:
            continue
        row = rows[each.branch]
        prompt = next(ids for name, ids in prompts.items() if name.endswith(f"/{number}"))
        _hold(row.token_ids[: each.answer_start] == prompt, "prompts", f"call {number}")
        trained = sum(row.action_mask[each.answer_start : each.end])
        _hold(trained in (0, each.end - each.answer_start), "masks", f"call {number}")
        allowed = each.kind in capture.trained and each.answer is not None and not each.control
        _hold(allowed or not trained, "trained", f"call {number} of kind {each.kind}")
    for row in rows:
        _hold(row.reason is not Reason.CAPTURE_ERROR, "captures", f"{row.error}")
        if capture.per_request:
            _hold(len(row.turns) <= 1, "requests", f"{row.trajectory_id} has several")


def check_answers(
    rows: Sequence[Trajectory],
    exchanges: Sequence[Exchange],
    requests: Sequence[GenerationRequest],
    answered: Sequence[Answered],
) -> None:
    """What a client got is what was recorded, after a prompt that shows what the client sent."""
    by_id = {each.answer_id: each for each in exchanges}
    prompts = {request.request_id.rpartition("/")[2]: request.prompt_ids for request in requests}
    for each in answered:
        answer = each.answer
        if answer.control:
            continue
        exchange = by_id[answer.answer_id]
        number = exchange.number
        _hold(exchange.answer == answer_json(answer), "answers", f"of call {number}")
        row = rows[exchange.branch or 0]
        _hold(row.reason is not Reason.UNANSWERED, "delivered", f"call {number} has a client")
        shown = _MARK.findall(CODEC.decode(prompts[str(number)]))
        sent = [mark for message in each.call.messages for mark in _MARK.findall(message.text)]
        _hold(shown == sent, "conversation", f"call {number} sent {sent}, the policy saw {shown}")


def check_repeats(lost: Sequence[tuple[ModelAnswer, ModelAnswer]]) -> None:
    """An answer that did not arrive comes again for the same request, and nothing is sampled."""
    for first, again in lost:
        same = answer_json(first) == answer_json(again)
        _hold(same, "lost answers", f"{first.answer_id} came again as {again.answer_id}")


def _hold(holds: bool, name: str, said: str) -> None:
    if not holds:
        raise BrokenGuaranteeError(f"{name}: {said}")
