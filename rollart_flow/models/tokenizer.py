"""Tokenization for append-only trajectories.

A chat template usually renders a whole conversation; a trajectory is one append-only chain whose
generated tokens are never encoded again. `TurnFormat` therefore extracts the text that a template
puts around one turn: it renders two probe conversations and keeps the pieces. A template is
supported if and only if it renders a longer conversation as the shorter one plus a suffix; ChatML
is, and so is the format of `tiny_tokenizer_files`. Invariant: the text of an observation cannot
forge a marker, because markers inside an observation are encoded as ordinary tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models

from rollart_flow.errors import SettingsError

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_PAD, _EOS, _UNKNOWN, _USER, _ASSISTANT = "<pad>", "<eos>", "<unk>", "<user>", "<assistant>"
_TINY_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
_NAMES = ("eos_token", "pad_token")
_PROBES = ("first-observation", "first-action", "second-observation")
_PROBE_TURNS = [
    {"role": role, "content": text}
    for role, text in zip(("user", "assistant", "user"), _PROBES, strict=True)
]


def tiny_tokenizer(words: Iterable[str] = ()) -> Tokenizer:
    """Return a tokenizer for printable ASCII characters, the newline, and each of `words`.

    A word is one token only between word boundaries; every unknown character becomes `<unk>`.
    """
    markers = (_PAD, _EOS, _UNKNOWN, _USER, _ASSISTANT)
    characters = ("\n", *map(chr, range(ord(" "), ord("~") + 1)))
    vocabulary = {token: index for index, token in enumerate((*markers, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=_UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(
        [AddedToken(marker, special=True, normalized=False) for marker in markers]
    )
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    return tokenizer


def tiny_tokenizer_files(words: Iterable[str], max_context: int) -> dict[str, str]:
    """Return the files (name to text) of `tiny_tokenizer`, which AutoTokenizer also loads."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _EOS,
        "pad_token": _PAD,
        "unk_token": _UNKNOWN,
        "additional_special_tokens": [_USER, _ASSISTANT],
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TINY_TEMPLATE,
    }
    return {
        "tokenizer.json": tiny_tokenizer(words).to_str(),
        "tokenizer_config.json": json.dumps(config, indent=2, sort_keys=True),
    }


def tokenizer_files(folder: str | Path) -> dict[str, str]:
    """Return the tokenizer files of a Hugging Face folder, as name to text.

    Raises:
        SettingsError: there is no tokenizer.json or tokenizer_config.json.
    """
    place = Path(folder)
    found = {
        name: (place / name).read_text(encoding="utf-8")
        for name in _FILES
        if (place / name).is_file()
    }
    for name in _FILES[:2]:
        if name not in found:
            raise SettingsError(f"no {name} in {str(folder)!r}; save the model with its tokenizer")
    return found


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The text that a chat template puts around the turns of an append-only conversation."""

    opening: str
    """Text before the first observation."""
    invitation: str
    """Text after an observation, which prompts for the action."""
    between: str
    """Text between an action and the next observation; it begins with the end-of-turn marker."""

    @staticmethod
    def from_template(template: str, tokens: Mapping[str, str]) -> "TurnFormat":
        """Extract the format of a chat template; `tokens` are its variables, such as eos_token.

        Raises:
            SettingsError: the template fails, or does more than append to earlier turns.
        """
        first, action, second = _PROBES
        try:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            compiled = environment.from_string(template)
            short, long = (
                compiled.render(messages=_PROBE_TURNS[:n], add_generation_prompt=True, **tokens)
                for n in (1, 3)
            )
        except TemplateError as error:
            raise SettingsError(f"the chat template cannot be rendered: {error}") from error
        opening, found, invitation = short.partition(first)
        head, tail = short + action, second + invitation
        between = long[len(head) : len(long) - len(tail)]
        if not (found and invitation and between) or long != head + between + tail:
            raise SettingsError(
                "the chat template rewrites earlier turns or lacks a generation prompt; "
                "use one that only appends, such as ChatML"
            )
        return TurnFormat(opening, invitation, between)


class TextCodec:
    """The tokenizer of a policy; implements `control.protocols.Codec`.

    A chain of two turns is: opening, observation, invitation, action with its stop token, the text
    between turns, observation, invitation, action.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        """Parse the texts of tokenizer.json, tokenizer_config.json and chat_template.jinja.

        Raises:
            SettingsError: a file is damaged, or no chat template can be encoded turn by turn.
        """
        self._tokenizer = _parse_tokenizer(files["tokenizer.json"])
        try:
            settings = json.loads(files["tokenizer_config.json"])
        except json.JSONDecodeError as error:
            raise SettingsError(f"tokenizer_config.json is damaged: {error}") from error
        template = files.get("chat_template.jinja") or _default_template(settings)
        markers = _marker_texts(settings)
        turns = TurnFormat.from_template(template, markers)
        self._opening = self._encode(turns.opening, markers=True)
        self._invitation = self._encode(turns.invitation, markers=True)
        self._between = self._encode(turns.between, markers=True)
        if self._between[0] not in self._tokenizer.get_added_tokens_decoder():
            raise SettingsError("the chat template ends a turn with plain text, not with a marker")
        named = [self._tokenizer.token_to_id(markers.get(name, "")) for name in _NAMES]
        ends = {self._between[0]: None, named[0]: None}
        self.stop_token_ids: tuple[int, ...] = tuple(token for token in ends if token is not None)
        """Tokens that end an action: the template's end of turn first, then the eos token."""
        self.pad_token_id: int | None = named[1]
        """Padding token; None if the tokenizer names none."""
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        """Number of token ids, markers included."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """Encode one observation, with the text before it and the prompt for the next action.

        Args:
            text: observation of the environment.
            first: whether it opens the trajectory.
            ended: whether the action before it ended with a stop token; if not, the end-of-turn
                marker is added here. Ignored for the first observation.
        """
        before = self._opening if first else self._between[1 if ended else 0 :]
        return (*before, *self._encode(text, markers=False), *self._invitation)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode plain text without markers, such as the text of an action."""
        return self._encode(text, markers=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of generated tokens, without stop tokens and other markers."""
        text: str = self._tokenizer.decode(
            [token for token in token_ids if token not in self.stop_token_ids],
            skip_special_tokens=True,
        )
        return text

    def _encode(self, text: str, *, markers: bool) -> tuple[int, ...]:
        self._tokenizer.encode_special_tokens = not markers
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _parse_tokenizer(text: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise SettingsError(f"tokenizer.json is damaged: {error}") from error


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
    for name in (*_NAMES, "bos_token", "unk_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
