"""Any error comes down to one line."""

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from rollart_flow.errors import RunFailedError
from rollart_flow.resources.reasons import reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (RunFailedError("ours"), "ours"),
    ],
)
def test_any_error_comes_down_to_one_line(error: Exception, said: str) -> None:
    assert reason(error) == said


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("rollart_flow.errors.EngineError: no memory: 3 GB", "no memory: 3 GB"),
        ("ValueError: no such model", "ValueError: no such model"),
        ("my.errors.EngineError: no memory", "my.errors.EngineError: no memory"),
    ],
)
def test_of_an_actor_that_could_not_start_the_traceback_says_why(last: str, said: str) -> None:
    text = f"\x1b[36mray::Worker.__init__()\x1b[39m\n  File 'a.py', line 1\n{last}"
    raised = RayTaskError("Worker.__init__", text, ValueError(), actor_id="0")
    assert reason(ActorDiedError(raised)) == said
