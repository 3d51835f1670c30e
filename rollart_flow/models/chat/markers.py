"""A tokenizer that tells the markers of a chat template from text that spells them.

Invariant: text that passed through `guard` never becomes a marker, whatever it spells, while other
text becomes exactly the tokens that transformers gives it.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from tokenizers import Tokenizer

from rollart_flow.errors import SettingsError

_GUARD = "\ufdd0"
"""A noncharacter of Unicode, which no text holds; `guard` puts it into what spells a marker."""


class MarkerTokenizer:
    """A tokenizer with the special tokens as markers."""

    def __init__(self, text: str) -> None:
        """Parse the text of a tokenizer.json.

        Raises:
            SettingsError: the text is damaged.
        """
        self._tokenizer = _parse_tokenizer(text)
        added = self._tokenizer.get_added_tokens_decoder()
        self.added = {token.content: index for index, token in added.items()}
        """Added tokens, which the tokenizer never splits, by text."""
        self._special = {token.content for token in added.values() if token.special}
        self._extra: frozenset[str] = frozenset()
        self._use()
        self.size: int = self._tokenizer.get_vocab_size()
        """Number of token ids, markers included."""

    def protect(self, markers: Collection[str]) -> None:
        """Treat more added tokens as markers; some models do not declare theirs as special."""
        self._extra = frozenset(markers) & self.added.keys() - self._special
        self._use()

    def guard(self, text: str, also: str = "") -> str:
        """Return a text for a template in which no marker is spelled, nor the text `also`."""
        if self._spells.search(text):
            text = self._spells.sub(lambda found: _broken(found.group()), text)
        return text.replace(also, _broken(also)) if also and also in text else text

    def rendered(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a rendered template, whose markers are markers."""
        if _GUARD not in text:
            return self._encode(text, markers=True)
        return tuple(self._guarded(text))

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text in which nothing is a marker."""
        if self._extra and self._spells.search(text):
            return tuple(self._guarded(self.guard(text)))
        return self._encode(text, markers=False)

    def first_marker(self, text: str) -> str | None:
        """Return the first marker of a rendered text."""
        found = self._spells.search(text)
        return found.group() if found else None

    def id_of(self, text: str) -> int | None:
        """Return the id of one token."""
        return self._tokenizer.token_to_id(text)

    def text_of(self, token_ids: Sequence[int], keep: Collection[str] = ()) -> str:
        """Return the text of tokens, without special tokens but for those to keep."""
        if not keep:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))
        left = {self.added[marker] for marker in self._special if marker not in keep}
        kept = [token for token in token_ids if token not in left]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def _use(self) -> None:
        markers = sorted((m for m in self._special | self._extra if m), key=len, reverse=True)
        self._spells = re.compile("|".join(map(re.escape, markers)) or r"(?!)")

    def _guarded(self, text: str) -> Iterator[int]:
        """Encode the text between markers, and each piece of it between guards, by itself."""
        start = 0
        for found in self._spells.finditer(text):
            yield from self._pieces(text[start : found.start()])
            yield self.added[found.group()]
            start = found.end()
        yield from self._pieces(text[start:])

    def _pieces(self, text: str) -> Iterator[int]:
        for piece in text.split(_GUARD):
            yield from self._encode(piece, markers=False)

    def _encode(self, text: str, *, markers: bool) -> tuple[int, ...]:
        self._tokenizer.encode_special_tokens = not markers
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def unguarded(text: str) -> str:
    """Return a text without what `guard` put into it."""
    return text.replace(_GUARD, "")


def _broken(text: str) -> str:
    return _GUARD.join(text)


def _parse_tokenizer(text: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise SettingsError(f"tokenizer.json is damaged: {error}") from error
