"""Messages between processes are equal on the other side."""

import pickle

import pytest

from rollart_flow.control.protocols import Change
from rollart_flow.types import Assignment, Event, EventKind, Reason, Sampling, Task
from tests.builders import sample

TASK = Task("t", "arithmetic", '{"a": 1}')


@pytest.mark.parametrize(
    "message",
    [
        TASK,
        Assignment("g00000000-00", "g00000000", TASK, 0, 7, Sampling(stop_token_ids=(3,))),
        sample("g00000000", 0),
        Change(committed=sample("g00000000", 0)),
        Change(evicted=("g00000000", Reason.GROUP_EVICTED)),
        Event(EventKind.ADMIT, "g00000000", detail={"cursor": 1}),
    ],
)
def test_a_message_is_pickled_by_its_values(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    assert b"_dataclass_setstate" not in pickle.dumps(message)
