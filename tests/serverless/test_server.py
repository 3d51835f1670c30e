"""functions-framework at the other end of an HTTP target."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollart_flow.errors import RewardFailedError
from tests.serverless.calls import WITH_PARTS, score


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
