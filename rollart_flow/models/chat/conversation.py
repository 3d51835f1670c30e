"""The conversation of one attempt, in messages and in tokens."""

import re
from collections.abc import Sequence
from functools import partial
from itertools import count

from rollart_flow.control.environment import Retold
from rollart_flow.errors import TemplateRefusedError
from rollart_flow.models.chat.calls import WrittenCall
from rollart_flow.models.chat.formats import ChatFormat, ParsedText
from rollart_flow.models.chat.heads import NO_HEADS
from rollart_flow.models.chat.history import HistoryRenderer
from rollart_flow.models.chat.markers import MarkerTokenizer
from rollart_flow.models.chat.renderer import TurnRenderer
from rollart_flow.models.chat.template import Form
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.types import Action, Message, Observation, Role, ToolCall
from rollart_flow.types.messages import messages_of
from rollart_flow.types.token_ids import TokenIds

_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""Mistral's templates refuse every other id."""


class TemplateConversation:
    """The chain of one attempt by a chat template; a `control.environment.Conversation`.

    Equal observations and tokens give equal tokens, actions and ids of calls.
    """

    def __init__(
        self,
        renderer: TurnRenderer,
        tokenizer: MarkerTokenizer,
        chat_format: ChatFormat,
        tools: Sequence[Form],
        stops: Sequence[int],
        pictures: PictureProcessor | None = None,
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._format = chat_format
        self._tools = tools
        self._stops = frozenset(stops)
        self._pictures = pictures
        self._history = HistoryRenderer(renderer, tools, partial(_expanded, pictures))
        self._heads = self._next_heads = NO_HEADS
        self._messages: list[Message] = []
        self._call_ids: set[str] = set()
        self._numbers = count()
        self._thinking = False
        self._stop: int | None = None
        self._forged = False
        """Whether the last action has a token that stands for an image."""

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        """Return the tokens that follow the chain: an observation, and the prompt for an action.

        Raises:
            TemplateRefusedError: the chat template refuses the messages.
        """
        if self._forged:
            raise TemplateRefusedError("the action before it has the placeholder of an image")
        new = messages_of(observation)
        if self._messages:
            suffix = self._renderer.follow(
                new,
                self._tools,
                first=self._system,
                calls=self._messages[-1].tool_calls,
                ended=ended,
                stop=self._stop,
            )
        else:
            suffix = self._renderer.open(new, self._tools)
        self._messages += new
        self._heads = self._next_heads
        self._call_ids.update(call.call_id for each in new for call in each.tool_calls)
        self._thinking = suffix.thinking
        return _expanded(self._pictures, suffix.token_ids, new)

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        """Return all messages as they are rendered now; None if they begin with the chain.

        Beside a copy of the tokens for a new chain, the cost is that of the new messages, where
        the template allows it.

        Args:
            observation: the next observation, which this conversation does not get.
            token_ids: the whole chain.

        Raises:
            TemplateRefusedError: the chat template refuses the messages.
        """
        new = messages_of(observation)
        messages = [*self._messages, *new]
        found = self._history.render(messages, self._heads)
        shared = found.common(token_ids)
        if shared == len(token_ids):
            self._next_heads = found.heads_after(self._heads, token_ids)
            return None
        tokens = found.joined()
        self._next_heads = found.heads_after(self._heads, tokens.read())
        again = TemplateConversation(
            self._renderer, self._tokenizer, self._format, self._tools, tuple(self._stops),
            self._pictures,
        )  # fmt: skip
        again._history, again._heads = self._history, self._next_heads
        again._messages = messages
        again._call_ids = self._call_ids.union(call.call_id for m in new for call in m.tool_calls)
        again._thinking = found.thinking
        return Retold(again, tokens, shared)

    def act(self, token_ids: Sequence[int]) -> Action:
        """Return the action that generated tokens are; malformed calls have an error."""
        last = token_ids[-1] if token_ids else None
        self._stop = last if last in self._stops else None
        self._forged = self._pictures is not None and self._pictures.placeholder in token_ids
        parsed = self.parse(token_ids)
        calls = tuple(map(self._call, parsed.calls))
        action = Action(parsed.text, parsed.thinking, calls)
        self._messages.append(action.as_message())
        return action

    def answer(self, message: Message, *, ended: bool = True) -> tuple[int, ...]:
        """Return the tokens of an answer to the last prompt that the policy did not sample.

        Its calls keep their ids.

        Args:
            message: message of the assistant.
            ended: whether the tokens end with a stop token.

        Raises:
            TemplateRefusedError: the chat template refuses the message.
        """
        token_ids = self._renderer.answer(message, self._tools, first=self._system)
        if not ended and token_ids and token_ids[-1] in self._stops:
            token_ids = token_ids[:-1]
        last = token_ids[-1] if token_ids else None
        self._stop = last if last in self._stops else None
        self._forged = self._pictures is not None and self._pictures.placeholder in token_ids
        self._call_ids.update(call.call_id for call in message.tool_calls)
        self._messages.append(message)
        return token_ids

    def parse(self, token_ids: Sequence[int], chat_format: ChatFormat | None = None) -> ParsedText:
        """Return the parts of an action to the last prompt, without effect.

        Args:
            token_ids: generated tokens.
            chat_format: format to parse them in; None: that of the policy.
        """
        chosen = chat_format or self._format
        kept = [token for token in token_ids if token not in self._stops]
        text = self._tokenizer.text_of(kept, keep=chosen.reads)
        return chosen.parse(text, self._tools, thinking=self._thinking)

    @property
    def rewrites_history(self) -> bool:
        """Whether the chat template changes or drops tokens of earlier turns, such as thinking.

        The chain keeps these tokens.
        """
        try:
            return self._renderer.rewrites(self._system, self._tools)
        except TemplateRefusedError:
            return True

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        """Return the first position at which rendering all messages again gives another token.

        Args:
            token_ids: the whole chain.

        Returns:
            The position; 0 if the chat template refuses the conversation as a whole, None if the
            rendering begins with the chain.
        """
        try:
            prompt = self._messages[-1].role is not Role.ASSISTANT
            found = self._history.render(self._messages, self._heads, prompt=prompt)
        except TemplateRefusedError:
            return 0
        chain = token_ids if isinstance(token_ids, TokenIds) else TokenIds.of(token_ids)
        at = found.common(chain)
        return at if at < len(chain) else None

    @property
    def _system(self) -> Message | None:
        """The message of the system that opens the conversation."""
        first = self._messages[0] if self._messages else None
        return first if first is not None and first.role is Role.SYSTEM else None

    def _call(self, written: WrittenCall) -> ToolCall:
        call_id = written.call_id
        if call_id is None or call_id in self._call_ids or not _CALL_ID.fullmatch(call_id):
            fresh = (f"call{number:05d}" for number in self._numbers)
            call_id = next(each for each in fresh if each not in self._call_ids)
        self._call_ids.add(call_id)
        text = "" if written.error is None else written.text
        return ToolCall(call_id, written.name, written.arguments or {}, written.error, text)


def _expanded(
    pictures: PictureProcessor | None, token_ids: tuple[int, ...], messages: Sequence[Message]
) -> tuple[int, ...]:
    """Return rendered tokens with as many placeholders as the images of messages take."""
    images = [image for message in messages for image in message.images]
    if pictures is not None:
        return pictures.expand(token_ids, images)
    if images:
        raise TemplateRefusedError("the policy's model takes no images, but a message has one")
    return token_ids
