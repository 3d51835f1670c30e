"""The tokenizer of a policy: text and messages become tokens, and tokens text and actions.

Invariants: generated tokens are never encoded again, and the text of an observation cannot forge a
marker, because markers inside an observation are encoded as ordinary tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.models.chat.conversation import TemplateConversation
from rollart_flow.models.chat.formats import PARSER_VERSION, format_of
from rollart_flow.models.chat.markers import MarkerTokenizer
from rollart_flow.models.chat.renderer import TurnRenderer
from rollart_flow.models.chat.settings import BRANCH, ChatSettings
from rollart_flow.models.chat.template import ChatTemplate
from rollart_flow.models.chat.turns import TurnFormat
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.models.tokenizer import CHAT_FILE
from rollart_flow.types import Message, Role, Tool

_ENDS = ("eos_token", "pad_token")
_MARKERS = (*_ENDS, "bos_token", "unk_token", "sep_token", "cls_token", "mask_token")


class TextCodec:
    """The tokenizer of a policy; implements `control.environment.ChatCodec`.

    A chain of two turns is: opening, observation, invitation, action with its stop token, the text
    between turns, observation, invitation, action.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        """Parse the texts of the files that `tokenizer.tokenizer_files` returns.

        Raises:
            SettingsError: a file is damaged, or no chat template can be encoded turn by turn.
        """
        self._tokenizer = MarkerTokenizer(files["tokenizer.json"])
        try:
            settings = json.loads(files["tokenizer_config.json"])
        except json.JSONDecodeError as error:
            raise SettingsError(f"tokenizer_config.json is damaged: {error}") from error
        chat = ChatSettings.parse(files.get(CHAT_FILE))
        markers = _marker_texts(settings)
        source = files.get("chat_template.jinja") or _default_template(settings)
        self._template = ChatTemplate(source, {**markers, **chat.options}, chat.now)
        turns = TurnFormat.from_template(self._template)
        self._tokenizer.protect(_role_markers(turns, self._tokenizer))
        self._renderer = TurnRenderer(self._template, self._tokenizer)
        self._format = format_of(source, chat.format)
        self.parser_version = f"{self._format.name}/{PARSER_VERSION}"
        """Name of the format in which actions are parsed, and its version."""
        self.template_version = self._template.digest
        """Digest of the chat template and its variables."""
        self.branches_history = chat.history == BRANCH
        """Whether a branch begins where the chat template changes earlier turns."""
        self.pictures = PictureProcessor.of(files, self._tokenizer.id_of, self._tokenizer.rendered)
        """The image processor; None if the model takes no images."""
        self._pieces = self._encoded(turns) if turns.appends else None
        ids = map(self._tokenizer.id_of, (*self._renderer.stops, markers.get("eos_token", "")))
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys(token for token in ids if token is not None)
        )
        """Tokens that end an action: the template's ends of turns first, then the eos token."""
        self.pad_token_id: int | None = self._tokenizer.id_of(markers.get("pad_token", ""))
        """Padding token; None if the tokenizer names none."""
        self.vocab_size: int = self._tokenizer.size
        """Number of token ids, markers included."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """Encode one observation, with the text before it and the prompt for the next action.

        Args:
            text: observation of the environment.
            first: whether it opens the trajectory.
            ended: whether the action before it ended with a stop token; if not, the end-of-turn
                marker is added here. Ignored for the first observation.
        """
        if self._pieces is not None:
            opening, between, invitation = self._pieces
            before = opening if first else between[1 if ended else 0 :]
            return (*before, *self._tokenizer.plain(text), *invitation)
        messages = [Message(Role.USER, text)]
        if first:
            return self._renderer.open(messages).token_ids
        return self._renderer.follow(messages, ended=ended).token_ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode plain text without markers, such as the text of an action."""
        return self._tokenizer.plain(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of generated tokens, without stop tokens and other markers."""
        return self._tokenizer.text_of(
            [token for token in token_ids if token not in self.stop_token_ids]
        )

    def converse(self, tools: Sequence[Tool] = ()) -> TemplateConversation:
        """Begin the conversation of an attempt that may call these tools.

        Raises:
            SettingsError: the chat template has no place for tools.
        """
        shown = tuple(tool.as_json() for tool in tools)
        if tools and not self._renderer.takes_tools(shown):
            raise SettingsError(
                "the chat template has no place for tools; use a model that was trained to call "
                "tools, or an environment without them"
            )
        return TemplateConversation(
            self._renderer, self._tokenizer, self._format, shown, self.stop_token_ids,
            self.pictures,
        )  # fmt: skip

    def _encoded(self, turns: TurnFormat) -> tuple[tuple[int, ...], ...]:
        texts = (turns.opening, turns.between, turns.invitation)
        return tuple(map(self._tokenizer.rendered, texts))


def _role_markers(turns: TurnFormat, tokenizer: MarkerTokenizer) -> list[str]:
    """Return the added tokens that separate turns; some models do not declare them as special."""
    separators = turns.between + turns.invitation
    return [
        text
        for text in tokenizer.added
        if text[:1] in ("<", "[") and "think" not in text.lower() and text in separators
    ]


def _default_template(settings: Mapping[str, Any]) -> str:
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default")
    if not isinstance(template, str):
        raise SettingsError("the tokenizer has no chat template; use an instruction-tuned model")
    return template


def _marker_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _MARKERS:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
