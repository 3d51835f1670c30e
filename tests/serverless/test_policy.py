"""Settings of calls that cannot work are refused."""

from typing import Any

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.serverless.policy import CallPolicy


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_s": 0}, {"deadline_s": float("nan")}, {"attempts": 0}, {"attempts": 1.5},
        {"hedge_after_s": -1.0}, {"max_concurrent": True}, {"breaker_reset_s": None},
    ],
)  # fmt: skip
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SettingsError, match=f"^{name} should be "):
        CallPolicy(**wrong)
