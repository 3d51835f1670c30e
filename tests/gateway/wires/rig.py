"""The official clients of a scripted gateway, and the answers that each of them streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.gateway.sdks import anthropic, genai, openai, types
from tests.gateway.wires.scripted import KEY, ScriptedGateway, answer


def openai_client(gateway: ScriptedGateway, key: str = KEY) -> openai.OpenAI:
    """OpenAI's client, of the wires chat and responses."""
    return openai.OpenAI(
        base_url="http://gateway/v1", api_key=key, http_client=gateway.client(), max_retries=0
    )


def anthropic_client(gateway: ScriptedGateway, key: str = KEY) -> anthropic.Anthropic:
    """Anthropic's client, of the wire messages."""
    return anthropic.Anthropic(
        base_url="http://gateway", api_key=key, http_client=gateway.client(), max_retries=0
    )


@contextmanager
def google_client(gateway: ScriptedGateway, key: str = KEY) -> Iterator[genai.Client]:
    """Google's client, of the wire google."""
    options = types.HttpOptions(base_url="http://gateway", httpx_client=gateway.client())
    with genai.Client(api_key=key, http_options=options) as sdk:
        yield sdk


STREAMED = (
    pytest.param(answer(), id="text"),
    pytest.param(answer("", "hmm"), id="thinking"),
    pytest.param(answer(""), id="nothing"),
    pytest.param(answer("", calls=True), id="calls"),
    pytest.param(answer("t", "h", calls=True), id="all"),
)
"""Answers of every kind: a stream of each adds up to the whole."""
