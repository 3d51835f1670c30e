"""The files of a tokenizer, and the tokenizer of tiny policies."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import PROCESSOR_FILES

CHAT_FILE = "chat.json"
"""File with the settings of a policy's conversations."""
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", CHAT_FILE, *PROCESSOR_FILES,
)  # fmt: skip
_PAD, _EOS, _UNKNOWN, _USER, _ASSISTANT = "<pad>", "<eos>", "<unk>", "<user>", "<assistant>"
_TINY_TEMPLATE = (
    "{% if tools %}<user>tools:"
    "{% for tool in tools %} {{ tool['function']['name'] }}{% endfor %}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}<eos>"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


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
