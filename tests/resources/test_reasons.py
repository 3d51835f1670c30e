"""Any error comes down to one line."""

import pytest

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
