"""Formats in which families of models write thinking and calls."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.errors import SettingsError
from rollart_flow.models.chat.calls import (
    CallParser,
    WrittenCall,
    bare_json,
    call_of,
    deepseek_calls,
    functions_in_tags,
    json_in_tags,
    mistral_calls,
    no_calls,
    pairs_in_tags,
    read_json,
)
from rollart_flow.models.chat.settings import AUTO_FORMAT
from rollart_flow.models.chat.template import Form

PARSER_VERSION = 1
"""Version of all formats; it rises when one of them parses a text otherwise than before."""

_THINK = ("<think>", "</think>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_BODY_END = re.compile(r"<\|(?:end|call|return)\|>")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The parts of an action's text."""

    text: str
    thinking: str | None
    calls: tuple[WrittenCall, ...]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The format of one family."""

    name: str
    sign: str
    """Text in the chat template by which the format is recognized."""
    calls: CallParser = no_calls
    think: tuple[str, str] = _THINK
    """Text before and after what the policy thinks."""
    markers: tuple[str, ...] = ()
    """Further markers that the parsers read."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Markers that the parsers read, which may be special tokens."""
        return (*self.think, "<tool_call>", "</tool_call>", *self.markers)

    def parse(self, text: str, tools: Sequence[Form], *, thinking: bool) -> ParsedText:
        """Return the parts of an action.

        Args:
            text: text of the action without stop tokens.
            tools: functions that the policy may call; without any, a call is text.
            thinking: whether the prompt for the action opened the thinking.
        """
        if self.name == HARMONY:
            return _parse_harmony(text, with_calls=bool(tools))
        thought, rest = self._split(text, thinking)
        outside, calls = self.calls(rest, tools) if tools else (rest, [])
        return ParsedText(outside, thought, tuple(calls))

    def _split(self, text: str, thinking: bool) -> tuple[str | None, str]:
        opened, closed = self.think
        begins = text.lstrip().startswith(opened)
        if not begins and not thinking:
            return None, text
        inner = text.lstrip()[len(opened) :] if begins else text
        thought, _, rest = inner.partition(closed)
        return thought.strip("\n") or None, rest.lstrip("\n")


HARMONY = "harmony"
PLAIN = "plain"
FORMATS = (
    ChatFormat(
        HARMONY,
        "<|channel|>",
        markers=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
    ),
    ChatFormat(
        "mistral",
        "[TOOL_CALLS]",
        mistral_calls,
        ("[THINK]", "[/THINK]"),
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    ChatFormat("glm", "<arg_key>", pairs_in_tags),
    ChatFormat("qwen-xml", "<function=", functions_in_tags),
    ChatFormat("hermes", "<tool_call>", json_in_tags),
    ChatFormat(
        "deepseek",
        "<｜tool▁call▁begin｜>",
        deepseek_calls,
        markers=(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    ChatFormat("llama", '"parameters": ', bare_json, markers=("<|python_tag|>",)),
    ChatFormat(PLAIN, ""),
)
"""All formats; the first whose sign a chat template holds is its format."""
FORMAT_NAMES = (AUTO_FORMAT, *(each.name for each in FORMATS))


def format_of(template: str, name: str = AUTO_FORMAT) -> ChatFormat:
    """Return the format of a name, or the one that a chat template's text tells.

    Raises:
        SettingsError: there is no format of that name.
    """
    for each in FORMATS:
        if each.name == name or (name == AUTO_FORMAT and each.sign in template):
            return each
    raise SettingsError(f"chat_format must be one of {', '.join(FORMAT_NAMES)}, not {name!r}")


def _parse_harmony(text: str, *, with_calls: bool) -> ParsedText:
    """Parse gpt-oss: messages with a channel each, of which commentary may call a tool."""
    texts, thoughts, calls = [], [], []
    for part in text.split("<|start|>"):
        header, found, rest = part.partition("<|message|>")
        body = _BODY_END.split(rest, maxsplit=1)[0]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if not found:
            if "<|channel|>" not in header and part is text:
                texts.append(header)
        elif recipient and with_calls:
            calls.append(call_of(body, recipient[1], read_json(body)))
        elif channel and channel[1] == "analysis":
            thoughts.append(body)
        else:
            texts.append(body)
    return ParsedText("".join(texts), "".join(thoughts) or None, tuple(calls))
