"""functions-framework at the other end of an HTTP target."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollart_flow.errors import (
    RewardFailedError,
)
from rollart_flow.rewards.base import Score
from rollart_flow.serverless import CallPolicy, ServerlessReward
from tests.builders import TRAJECTORY

QUICK = CallPolicy(deadline_s=20.0, backoff_s=0.001, hedge_after_s=None)


WITH_PARTS = (0.5, {"right": 1.0, "short": -0.5})


def score(url: str, policy: CallPolicy = QUICK) -> Score:
    """One reward through a client of its own."""

    async def call() -> Score:
        reward = ServerlessReward(url, policy)
        try:
            return await reward(TRAJECTORY)
        finally:
            await reward.close()

    return asyncio.run(call())


@contextmanager
def functions_framework_serving(target: str) -> Iterator[str]:
    """The URL of a target of `hosted`, under functions-framework."""
    from functions_framework import create_app
    from werkzeug.serving import make_server

    source = str(Path(__file__).parent / "hosted.py")
    app = create_app(target, source)  # type: ignore[no-untyped-call]
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"fc://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_target_of_functions_framework_scores() -> None:
    with functions_framework_serving("target") as url:
        assert score(url) == WITH_PARTS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_target_tells_what_its_function_raises() -> None:
    with (
        functions_framework_serving("failing_target") as url,
        pytest.raises(RewardFailedError, match="KeyError: 'gold answer'"),
    ):
        score(url)
