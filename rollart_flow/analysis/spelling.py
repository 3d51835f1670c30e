"""Spelling of token ids by the tokenizer of a run's policy."""

from collections.abc import Callable

from rollart_flow.store.layout import policy_uri
from rollart_flow.weights.folder_store import file_in

Spell = Callable[[int], str]
"""Text of one token."""


def speller(run: str) -> Spell:
    """Return a speller of token ids: the tokenizer of a run, or numbers if it has none.

    Args:
        run: address of the run.
    """
    from tokenizers import Tokenizer

    source = file_in(policy_uri(run), "tokenizer.json")
    if source is None:
        return lambda token: f"<{token}>"
    tokenizer = Tokenizer.from_str(source.decode())
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))
