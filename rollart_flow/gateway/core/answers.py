"""The answer that a client gets: the parsed action with minted ids, cut at its stop texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollart_flow.control.environment import Codec
from rollart_flow.gateway.core.call_ids import mint_answer_id, mint_call_id
from rollart_flow.gateway.core.calls import AnswerEnd, ModelAnswer, ModelCall
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.forest import Forest
from rollart_flow.types import Action, FinishReason, Generation

_STOPS = ("stop", "stop_sequences", "stopSequences")


@dataclass(frozen=True, slots=True)
class Minted:
    """The ids that an answer comes with."""

    answer: ModelAnswer
    call_ids: Mapping[str, str]
    """Ids of the calls in the chain, by those that the client gets, in their order."""

    @property
    def ids(self) -> list[str]:
        """Every id that a client may send back."""
        answer = self.answer
        return [*self.call_ids, answer.answer_id, *([answer.signature] if answer.signature else [])]


def answer_of(
    action: Action,
    generation: Generation,
    call: ModelCall,
    exchange: Exchange,
    *,
    name: str,
    codec: Codec,
    forest: Forest,
) -> Minted:
    """Return the answer to a call.

    The text ends before the first stop text of the client, and calls after it are gone. The chain
    keeps all tokens: the policy sees them in later turns, the client does not. Where the client
    offers no tools, the calls of the action are part of its text.

    Args:
        action: the parsed tokens, with the ids of the chain.
        generation: the tokens.
        call: the call.
        exchange: its record.
        name: unique name of the session.
        codec: codec of the policy.
        forest: answers of the session.
    """
    number, shown = exchange.number, action
    if action.tool_calls and not call.tools:
        shown = replace(action, text=codec.decode(generation.token_ids), tool_calls=())
    text, stopped = _until_stop(shown.text, stop_texts(call))
    if stopped:
        shown = replace(shown, text=text, tool_calls=())
    made: dict[str, str] = {}
    for index, each in enumerate(shown.tool_calls):
        minted = mint_call_id(name, number, index, _Taken(forest, made))
        made[minted] = each.call_id
    pairs = zip(shown.tool_calls, made, strict=True)
    shown = replace(shown, tool_calls=tuple(replace(old, call_id=new) for old, new in pairs))
    end = AnswerEnd.TOOL_CALLS if shown.tool_calls else AnswerEnd.STOP
    if generation.finish_reason is FinishReason.LENGTH and not stopped:
        end = AnswerEnd.LENGTH
    answer = ModelAnswer(
        answer_id=mint_answer_id(name, number),
        action=shown,
        end=end,
        prompt_tokens=exchange.answer_start,
        cached_tokens=exchange.start,
        answer_tokens=len(generation.token_ids),
        thinking_tokens=_thinking_tokens(action.thinking, generation.token_ids, codec),
        signature=mint_answer_id(name, number, "thinking") if action.thinking else "",
    )
    return Minted(answer, made)


def control_answer(text: str, answer_id: str) -> ModelAnswer:
    """Return an answer with a text of the gateway's own, which ends the agent's turn."""
    return ModelAnswer(
        answer_id=answer_id,
        action=Action(text),
        end=AnswerEnd.STOP,
        prompt_tokens=0,
        cached_tokens=0,
        answer_tokens=0,
        control=True,
    )


def stop_texts(call: ModelCall) -> list[str]:
    """Return the texts at which the client wants an answer to end."""
    asked = next((call.sampling[name] for name in _STOPS if call.sampling.get(name)), ())
    texts = [asked] if isinstance(asked, str) else asked
    if not isinstance(texts, list | tuple):
        return []
    return [text for text in texts if isinstance(text, str) and text]


class _Taken:
    """Ids of calls that are given away."""

    def __init__(self, forest: Forest, made: Mapping[str, str]) -> None:
        self._forest = forest
        self._made = made

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._made or self._forest.mints(str(call_id))


def _until_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the first stop text, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _thinking_tokens(thinking: str | None, token_ids: Sequence[int], codec: Codec) -> int:
    """Return the number of tokens up to the end of the thinking, found by decoding beginnings."""
    if not thinking:
        return 0
    whole = codec.decode(token_ids)
    length = max(whole.find(thinking), 0) + len(thinking)
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high) // 2
        if len(codec.decode(token_ids[:middle])) < length:
            low = middle + 1
        else:
            high = middle
    return low
