"""Calls to a store whose server is away are repeated, named and limited."""

import polars as pl
import pytest
from deltalake.exceptions import DeltaError

from rollart_flow.blocked import blocked
from rollart_flow.errors import StoreAwayError
from rollart_flow.retries import RetryPolicy, unrepeated
from rollart_flow.store import away, files
from rollart_flow.store.away import LIMIT_VARIABLE, passed_outages, repeated, repeated_query

SAID = "Generic S3 error: Error performing GET http://host/x in 1s - HTTP error: error sending"


class Server:
    """A server that is away for some calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.named: list[str] = []

    def __call__(self) -> str:
        self.named.append(blocked()[-1][0])
        if self.errors:
            raise self.errors.pop(0)
        return "read"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses take no time."""
    monkeypatch.setattr(
        away, "RetryPolicy", lambda limit_s: RetryPolicy(limit_s=limit_s, backoff_s=0)
    )


def test_a_call_is_repeated_and_its_wait_says_why() -> None:
    server = Server(ConnectionError("no\nanswer"), ConnectionError("busy"))
    assert repeated("write x", server) == "read"
    assert server.named == [
        "write x", "write x (failed 1 time: no answer)", "write x (failed 2 times: busy)"
    ]  # fmt: skip
    assert blocked() == []


def test_after_the_limit_the_error_names_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "-1")
    with (
        pytest.raises(StoreAwayError, match=r"^cannot write x: no answer \(attempts: 1 in 0 s\)$"),
        files.converting("cannot write x"),
    ):
        repeated("write x", Server(ConnectionError("no answer")))


def test_a_process_that_ends_repeats_nothing() -> None:
    server = Server(ConnectionError("no answer"))
    with unrepeated(), pytest.raises(ConnectionError, match=r"attempts: 1 in 0 s"):
        repeated("write x", server)
    assert repeated("write x", Server(ConnectionError("no answer"))) == "read"


@pytest.mark.parametrize(
    "error", [DeltaError(SAID), OSError(SAID), pl.exceptions.ComputeError(SAID)], ids=repr
)
def test_requests_of_deltalake_and_polars_are_repeated(error: Exception) -> None:
    assert repeated_query("read x", Server(error)) == "read"


@pytest.mark.parametrize(
    "error",
    [
        DeltaError("no version 7"),
        OSError("Generic S3 error: Server returned non-2xx status code: 403 Forbidden"),
        FileNotFoundError("x"),
    ],
    ids=repr,
)
def test_other_errors_of_theirs_are_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        repeated_query("read x", Server(error))


def test_an_outage_that_passed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_outages()
    repeated("write x", Server(ConnectionError("a moment")))
    assert passed_outages() == (), "it was short"
    monkeypatch.setattr(away, "_NOTED_S", 0.0)
    repeated("write x", Server(ConnectionError("no answer")))
    (outage,) = passed_outages()
    assert (outage.what, outage.failures, outage.error) == ("write x", 1, "no answer")
    assert passed_outages() == ()
