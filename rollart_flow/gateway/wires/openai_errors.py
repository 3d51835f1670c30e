"""The forms that both wires of OpenAI have in common: errors and models."""

from collections.abc import Mapping, Sequence

from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.gateway.wires.base import JsonObject

_TYPES: Mapping[Refusal, str] = {
    Refusal.BUSY: "rate_limit_error",
    Refusal.ENGINE: "server_error",
}
_CODES: Mapping[Refusal, str] = {
    Refusal.KEY: "invalid_api_key",
    Refusal.SEALED: "session_ended",
    Refusal.UNSUPPORTED: "unsupported_value",
    Refusal.TOO_LARGE: "request_too_large",
    Refusal.OVERFLOW: "context_length_exceeded",
    Refusal.BUSY: "rate_limit_exceeded",
    Refusal.ENGINE: "server_error",
}


def openai_error(error: CallRefusedError) -> JsonObject:
    """Return the JSON of a refusal."""
    kind = _TYPES.get(error.refusal, "invalid_request_error")
    code = _CODES.get(error.refusal)
    return {"error": {"message": message_of(error), "type": kind, "param": None, "code": code}}


def message_of(error: CallRefusedError) -> str:
    """Return the message of a refusal; for an overflow, the phrases that clients look for."""
    if error.refusal is not Refusal.OVERFLOW or error.tokens is None or error.limit is None:
        return error.message
    return (
        f"This model's maximum context length is {error.limit} tokens. However, your messages "
        f"resulted in {error.tokens} tokens. Please reduce the length of the messages."
    )


def openai_model(name: str) -> JsonObject:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollart"}


def openai_models(names: Sequence[str]) -> JsonObject:
    """Return the list of models."""
    return {"object": "list", "data": [openai_model(name) for name in names]}
