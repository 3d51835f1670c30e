"""Routes: which wire and operation a method and a path stand for, and where a key may stand."""

import json
from typing import Any

import pytest

from rollart_flow.gateway.wires.base import ProviderWire, WireReply
from rollart_flow.gateway.wires.registry import (
    WIRES,
    Operation,
    Route,
    find_route,
    presented_key,
)

ANTHROPIC = {"Anthropic-Version": "2023-06-01"}


def found(method: str, target: str, headers: dict[str, str] | None = None) -> tuple[str, Operation]:
    route = find_route(method, target, headers or {})
    assert isinstance(route, Route)
    return route.wire.name, route.operation


def refused(method: str, target: str) -> tuple[int, Any]:
    reply = find_route(method, target, {})
    assert isinstance(reply, WireReply)
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
def test_bases_with_and_without_a_version(base: str) -> None:
    assert found("POST", f"{base}/chat/completions?x=1") == ("chat", Operation.ANSWER)


def test_responses_and_their_count() -> None:
    assert found("POST", "/v1/responses") == ("responses", Operation.ANSWER)
    assert found("POST", "/responses/input_tokens") == ("responses", Operation.COUNT)
    assert found("POST", "/v1/responses/compact") == ("responses", Operation.ANSWER)
    assert refused("POST", "/v1/responses/compact/more")[0] == 404


def test_messages_and_their_count() -> None:
    assert found("POST", "/v1/messages?beta=true") == ("messages", Operation.ANSWER)
    assert found("POST", "/messages/count_tokens") == ("messages", Operation.COUNT)
    assert found("GET", "/v1/models", ANTHROPIC) == ("messages", Operation.MODELS)


@pytest.mark.parametrize("base", ["", "/v1", "/v1beta", "/v1alpha", "/v1beta/v1beta"])
def test_content_of_a_model(base: str) -> None:
    model = f"{base}/models/gemini-x"
    assert found("POST", f"{model}:generateContent") == ("google", Operation.ANSWER)
    assert found("POST", f"{model}:streamGenerateContent?alt=sse") == ("google", Operation.ANSWER)
    assert found("POST", f"{model}:countTokens?key=k") == ("google", Operation.COUNT)


def test_models_in_the_form_of_google() -> None:
    assert found("GET", "/v1beta/models") == ("google", Operation.MODELS)
    assert found("GET", "/models", {"X-Goog-Api-Key": "k"}) == ("google", Operation.MODELS)
    assert found("GET", "/v1beta/models/m") == ("google", Operation.MODEL)
    assert refused("POST", "/v1beta/models/m:embedContent")[1]["error"]["status"] == "NOT_FOUND"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_and_the_models_can_be_read(method: str) -> None:
    assert found(method, "/") == ("chat", Operation.ALIVE)
    assert found(method, "/v1/") == ("chat", Operation.ALIVE)
    assert found(method, "/models") == ("chat", Operation.MODELS)
    assert found(method, "/v1/models/a%2Fb") == ("chat", Operation.MODEL)


def test_a_model_has_the_name_that_its_path_has() -> None:
    route = find_route("GET", "/v1/models/a%2Fb", {})
    assert isinstance(route, Route)
    assert route.model == "a/b"


def test_what_is_not_here_is_404_and_a_wrong_method_405() -> None:
    status, body = refused("POST", "/v1/embeddings")
    assert (status, body["error"]["message"]) == (404, "there is nothing at /embeddings")
    status, body = refused("GET", "/v1/chat/completions")
    assert (status, body["error"]["type"]) == (405, "invalid_request_error")
    assert refused("POST", "/v1/models")[0] == 405
    assert refused("GET", "/v10/models")[0] == 404


@pytest.mark.parametrize("target", ["//[", "//[::1/models", "?", "", "/models/%zz", "*"])
def test_targets_that_are_no_addresses(target: str) -> None:
    assert isinstance(find_route("POST", target, {}), WireReply)
    assert presented_key(target, {}) is None


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/", {"Authorization": "Bearer secret"}),
        ("/", {"authorization": "bearer  secret"}),
        ("/", {"X-Api-Key": "secret"}),
        ("/", {"x-goog-api-key": "secret"}),
        ("/models?alt=sse&key=secret", {}),
        ("/", {"authorization": "Basic other", "x-api-key": "secret"}),
    ],
)
def test_a_key_may_stand_where_its_wire_has_it(target: str, headers: dict[str, str]) -> None:
    assert presented_key(target, headers) == "secret"


def test_a_request_without_a_key() -> None:
    assert presented_key("/models", {"authorization": "Basic secret"}) is None


def test_every_wire_has_the_name_under_which_it_is_found() -> None:
    for name, wire in WIRES.variants():
        assert isinstance(wire, ProviderWire)
        assert wire.name == name
