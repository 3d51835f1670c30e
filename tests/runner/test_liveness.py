"""Who of a run's processes lives, died or hangs: real actors on a real Ray."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rollart_flow.runner import liveness
from rollart_flow.runner.liveness import gone
from tests.local_ray import tolerating_ray

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
def cluster() -> Iterator[Any]:
    with tolerating_ray():
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            yield ray.remote(Rank).options(num_cpus=0)
        finally:
            ray.shutdown()


def test_who_died_who_hangs_and_who_is_only_busy(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_SOON_S", 4.0)
    monkeypatch.setattr(liveness, "_ANSWER_S", 2.0)
    buffer, rank, halted, lonely = (cluster.remote(lost) for lost in (False, False, False, True))
    pids = ray.get([each.pid.remote() for each in (buffer, rank, halted, lonely)])
    assert gone({"buffer": buffer}, {"rank": rank}) == ()
    assert gone({"buffer": buffer}, {"lonely": lonely}) == ("lonely",)
    os.kill(pids[2], signal.SIGSTOP)
    try:
        assert gone({"buffer": buffer}, {"rank": rank, "halted": halted}) == ()
        assert gone({"buffer": buffer}, {"lonely": lonely, "halted": halted}) == ("halted",)
        ray.kill(buffer)
        assert gone({"buffer": buffer}, {"lonely": lonely, "halted": halted}) == ("buffer",)
    finally:
        os.kill(pids[2], signal.SIGKILL)
