"""How many replicas calls bring, whatever number of messages they travel in."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollart_flow.serverless.scaling import CALLS, replicas_for_calls


@pytest.mark.parametrize(
    ("calls", "messages", "replicas"),
    [
        ({"a": 64.0}, 2, 1.0),
        ({"a": 96.0, "b": 64.0}, 5, 2.5),
        ({"a": 1.0}, 1, 1.0),
        ({}, 3, 1.0),  # all still wait for a replica
        ({"a": 0.0}, 0, 0.0),
    ],
)
def test_replicas_are_as_many_as_the_calls_take(
    calls: dict[str, float], messages: int, replicas: float
) -> None:
    context: Any = SimpleNamespace(
        aggregated_metrics={CALLS: calls},
        total_num_requests=messages,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 64.0),
    )
    assert replicas_for_calls(context) == (replicas, {})
