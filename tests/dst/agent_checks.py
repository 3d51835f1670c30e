"""What holds of the rows of an attempt whose agent is a program, judged on the rows alone.

Delivered + reasons = sampled: each token that an engine sampled for a run of the attempt is in one
row, as an action of it or with a reason. Each function returns what is wrong, or None.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from rollart_flow.types import TRAINABLE, WITHHELD, Trajectory
from rollart_flow.types.exchanges import StoredExchange
from tests.dst.agent_plans import AgentPlan
from tests.dst.turn_checks import Token


def captured_fault(
    branches: Sequence[Trajectory], sessions: Iterable[list[Token]], plan: AgentPlan
) -> str | None:
    """What is wrong with the tokens and the calls of an attempt.

    Args:
        branches: the rows of the attempt.
        sessions: tokens that engines sampled for it, for each run of the attempt.
        plan: what its program may do.
    """
    found: list[Token] = []
    for row in branches:
        tokens = _sampled(row)
        if isinstance(tokens, str):
            return f"{row.trajectory_id}: {tokens}"
        found += tokens
    calls = branches[0].exchanges or ()
    answered = any(each.answer is not None and not each.control for each in calls)
    if sorted(found) not in map(sorted, sessions) and (found or answered):
        return f"its rows have {sorted(found)}, which is what no run of it sampled"
    if sum(each.sampled_tokens for each in calls) != len(found):
        return f"its calls sampled {sum(each.sampled_tokens for each in calls)} of {len(found)}"
    if any(row.exchanges for row in branches[1:]):
        return "a later branch has calls"
    return next(filter(None, (_call_fault(each, branches, plan) for each in calls)), None)


def _sampled(row: Trajectory) -> list[Token] | str:
    """The sampled tokens of a row, or why they are not as they should be."""
    tokens, logprobs, versions = row.token_ids, row.logprobs, row.token_versions
    if {len(tokens), len(logprobs), len(versions)} != {len(row.action_mask)}:
        return "its lists are not aligned"
    found: list[Token] = []
    masks: Counter[bool] = Counter()
    every = zip(tokens, logprobs, versions, row.action_mask, strict=True)
    for token, logprob, version, mask in every:
        if version >= 0:
            found.append((token, logprob, version))
            masks[mask] += 1
        elif mask or logprob:
            return "a token that was not sampled is an action, or has a logprob"
    if masks[False] and (masks[True] or row.reason is None):
        return f"{masks[False]} sampled tokens are no actions, {masks[True]} are: {row.reason}"
    if masks[True] and row.reason in WITHHELD:
        return f"{masks[True]} actions are withheld: {row.reason}"
    if masks[True] and row.outcome not in TRAINABLE and row.reason is None:
        return f"its tokens are not delivered, and nothing says why: {row.outcome}"
    acted = [v for v, mask in zip(versions, row.action_mask, strict=True) if mask]
    if (row.policy_version_start is None) == bool(acted):
        return "it has a start version without actions, or the other way round"
    return found


def _call_fault(
    call: StoredExchange, branches: Sequence[Trajectory], plan: AgentPlan
) -> str | None:
    row = next((each for each in branches if each.trajectory_id == call.trajectory_id), None)
    said = f"call {call.number} of kind {call.kind}"
    if (call.answer is None) == (call.refusal is None):
        return f"{said} has an answer and a refusal, or neither"
    if call.mismatches:
        return f"{said} differs in {call.mismatches} tokens from what the engine got"
    if row is None:
        return f"{said} sampled, but is in no row" if call.sampled_tokens else None
    span = slice(call.answer_start, call.answer_end)
    if min(row.token_versions[span], default=0) < 0:
        return f"{said} has tokens that were not sampled"
    trained = sum(row.action_mask[span])
    if trained != call.trained_tokens:
        return f"{said} says {call.trained_tokens} tokens are trained, the row has {trained}"
    failed = call.answer is None or call.control
    if trained and row.outcome in TRAINABLE and (failed or call.kind not in plan.capture.trained):
        return f"{said} is trained, answered or not: {call.answer}"
    return None


def captured_incomplete(branches: Sequence[Trajectory]) -> str | None:
    """What is missing or different in the rows of an attempt."""
    first = branches[0]
    if [row.branch for row in branches] != list(range(len(branches))):
        return f"its rows are the branches {[row.branch for row in branches]}"
    names = {first.trajectory_id: first}
    reasons = {row.reason for row in branches} - WITHHELD
    if len(reasons) > 1:
        return f"its rows have the reasons {reasons}"
    for row in branches[1:]:
        same = ("episode_id", "group_id", "attempt", "outcome", "reward")
        if any(getattr(row, name) != getattr(first, name) for name in same):
            return f"{row.trajectory_id} differs from branch 0"
        parent, shared = names.get(row.parent or ""), row.shared_tokens
        if parent is None and (row.parent is not None or shared):
            return f"{row.trajectory_id} came from {row.parent}, which is no branch before it"
        if parent is not None and row.token_ids[:shared] != parent.token_ids[:shared]:
            return f"the first {shared} tokens of {row.trajectory_id} are not its parent's"
        if any(row.action_mask[:shared]):
            return f"shared tokens of {row.trajectory_id} are actions"
        names[row.trajectory_id] = row
    return None
