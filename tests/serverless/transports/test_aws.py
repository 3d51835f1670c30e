"""AWS Lambda: the platform's own runtime client at the other end."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.errors import EndpointTroubleError, ServerlessError, SettingsError
from rollart_flow.serverless import ServerlessReward
from tests.builders import attempt
from tests.serverless.calls import QUICK, WITH_PARTS, score
from tests.serverless.lambda_front import LambdaFront, lambda_front


@pytest.fixture(scope="module")
def front() -> Iterator[LambdaFront]:
    """A Lambda whose function is `hosted.handler`; AWS's tools are pointed at it."""
    with (
        lambda_front("tests.serverless.hosted.handler") as front,
        pytest.MonkeyPatch.context() as p,
    ):
        p.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{front.address}")
        p.setenv("AWS_ACCESS_KEY_ID", "none")
        p.setenv("AWS_SECRET_ACCESS_KEY", "none")
        p.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield front


def test_lambda_scores_in_awss_own_runtime(front: LambdaFront) -> None:
    assert score("lambda://score?region=eu-central-1") == WITH_PARTS


def test_lambda_is_called_many_at_a_time_and_warmed(front: LambdaFront) -> None:
    async def test() -> None:
        reward = ServerlessReward("lambda://score?region=eu-central-1", QUICK)
        await reward.warm(3)
        scores = await asyncio.gather(*(reward(attempt(n)) for n in range(8)))
        await reward.close()
        assert scores == [WITH_PARTS] * 8

    asyncio.run(test())


def test_lambda_that_throttles_is_asked_again(front: LambdaFront) -> None:
    before = front.requests
    front.throttled = 2
    assert score("lambda://score?region=eu-central-1") == WITH_PARTS
    assert front.requests - before == 3


def test_a_lambda_that_is_not_there_is_refused_at_once(front: LambdaFront) -> None:
    before = front.requests
    with pytest.raises(ServerlessError, match="no such function"):
        score("lambda://other?region=eu-central-1")
    assert front.requests - before == 1


def test_a_lambda_that_breaks_off_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_front("tests.serverless.hosted.target") as front:  # not made for Lambda
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{front.address}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        with pytest.raises(EndpointTroubleError, match=r"the function broke off: .*TypeError"):
            score("lambda://score?region=eu-central-1", replace(QUICK, attempts=2))


def test_a_lambda_that_cannot_be_reached_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free_port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://127.0.0.1:{free_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    with pytest.raises(EndpointTroubleError, match=r"cannot be reached: .* \(2 attempts\)"):
        score("lambda://score?region=eu-central-1", replace(QUICK, attempts=2))


@pytest.mark.parametrize(
    ("url", "said"),
    [("lambda://score?zone=a", "takes region, not 'zone'"), ("lambda://score", "give .region")],
)
def test_what_lambda_needs_is_said(
    url: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=said):
        score(url)
