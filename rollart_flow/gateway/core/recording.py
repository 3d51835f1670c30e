"""Recording: the tokens of a call become a turn of its branch, and are compared with it."""

from collections.abc import Sequence

from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.forest import CapturedBranch
from rollart_flow.gateway.core.sent_turn import SentTurn
from rollart_flow.text import counted
from rollart_flow.types import Action, Generation


def record(
    branch: CapturedBranch,
    exchange: Exchange,
    prompt_ids: Sequence[int],
    generation: Generation,
    seconds: float,
) -> tuple[ChainTurn, Action] | None:
    """Add the tokens of a generation to the branch that its prompt ends; return turn and action.

    None if there are no tokens: then the branch is as it was before the call.

    Args:
        branch: the branch.
        exchange: the call.
        prompt_ids: what was sent to the engine.
        generation: what the engine returned.
        seconds: how long it took.

    Raises:
        Exception: what parsing the tokens raised; they are recorded.
    """
    recorder = branch.recorder
    if not generation.token_ids:
        recorder.withdraw()
        branch.stale = True  # its conversation has the messages of the call
        return None
    branch.last, failure = None, None
    try:
        action = branch.conversation.act(generation.token_ids)
    except Exception as error:  # noqa: BLE001  the tokens stay, whatever a parser makes of them
        action, failure, branch.stale = Action(""), error, True
    turn = recorder.act(generation, action, seconds)
    recorder.end_turn()
    exchange.start, exchange.answer_start, exchange.end = turn.start, turn.action_start, turn.end
    sent = SentTurn(turn, exchange, tuple(prompt_ids[turn.start :]), generation.token_ids)
    branch.sent.append(sent)
    if len(prompt_ids) != turn.action_start:
        branch.poisoned = "the chain has changed while a call on its end was under way"
    compare(branch, [sent])
    if failure is not None:
        raise failure
    return turn, action


def compare(branch: CapturedBranch, sent: Sequence[SentTurn]) -> None:
    """Compare turns with the chain, count what differs, and poison the branch if anything does."""
    for each in sent:
        token_ids = branch.recorder.token_ids
        exchange = each.exchange
        exchange.mismatches = each.mismatches(token_ids)
        if exchange.mismatches:
            exchange.prompt_ids = (*token_ids[: each.turn.start], *each.prompt_end)
            exchange.answer_ids = each.returned
            branch.poisoned = (
                f"{counted(exchange.mismatches, 'token')} of the chain differ from those that call "
                f"{exchange.number} sent and got"
            )
