"""Who of a run's processes lives, died or hangs: real actors on a real Ray."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from rollart_flow.resources import Placement, WorkerHandle, start_actor
from rollart_flow.runner.executors import liveness
from rollart_flow.runner.executors.liveness import gone
from tests.local_ray import own_ray

pytestmark = pytest.mark.whole


class Rank:
    """As a rank of a trainer answers."""

    def __init__(self, lost: bool = False) -> None:
        self._lost = lost

    def pid(self) -> int:
        return os.getpid()

    def lost(self) -> bool:
        return self._lost


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Any]]:
    with own_ray():
        yield start_actor(Rank, num_cpus=0)


def test_who_died_who_hangs_and_who_is_only_busy(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_SOON_S", 4.0)
    monkeypatch.setattr(liveness, "_ANSWER_S", 2.0)
    buffer = start(False)
    ranks: list[WorkerHandle[Any]] = [
        WorkerHandle(Placement(name, "training", "CPU"), start(name == "lonely").actor)
        for name in ("rank", "halted", "lonely")
    ]
    rank, halted, lonely = ranks
    halted_pid = ray.get(halted.actor.pid.remote())
    assert gone({"buffer": buffer}, [rank]) == ()
    assert gone({"buffer": buffer}, [lonely]) == ("lonely",)
    os.kill(halted_pid, signal.SIGSTOP)
    try:
        assert gone({"buffer": buffer}, [rank, halted]) == ()
        assert gone({"buffer": buffer}, [lonely, halted]) == ("halted",)
        buffer.kill()
        assert gone({"buffer": buffer}, [lonely, halted]) == ("buffer",)
    finally:
        os.kill(halted_pid, signal.SIGKILL)
