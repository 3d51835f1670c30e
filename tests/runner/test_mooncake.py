"""A run whose weights go through a Mooncake store, also where its servers are killed."""

import os
import signal
from pathlib import Path

import pytest

from rollart_flow.runner.processes import RunProcesses
from rollart_flow.store import RunStatus
from rollart_flow.weights import fingerprint, stored_weights
from rollart_flow.weights.mooncake.servers import MooncakeServers
from tests.extras import with_mooncake
from tests.runner.local import run_with
from tests.runner.world import PIPELINE, check_sound, source

pytestmark = [with_mooncake, pytest.mark.usefixtures("shared_ray")]
THROUGH_MOONCAKE = PIPELINE.replace("checkpoint_every=3", 'checkpoint_every=3, weights="mooncake"')


@pytest.mark.whole
def test_a_run_goes_on_where_the_servers_of_its_weights_are_killed(
    tmp_path: Path, plants: list[RunProcesses]
) -> None:
    """The master after two steps, the client once others serve, and their master in turn."""
    pids: set[int] = set()
    master, client = 0, 1
    victims = [master, client, master]
    killed: set[int] = set()

    def after_step(step: int) -> None:
        servers = plants[-1].weight_servers
        assert isinstance(servers, MooncakeServers)
        pids.update(servers.pids)
        if step >= 2 and victims and servers.pids and killed.isdisjoint(servers.pids):
            killed.add(servers.pids[victims[0]])
            os.kill(servers.pids[victims.pop(0)], signal.SIGKILL)

    run = run_with(source(tmp_path, THROUGH_MOONCAKE, steps=24, every=8), tmp_path, after_step)
    check_sound(run, 24)
    assert not victims
    assert run.info.status is RunStatus.FINISHED
    assert (run.steps.collect()["pull_s"] > 0).sum() >= 3
    assert len(pids) >= 4, "others took their place"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    kept = stored_weights(f"{run.uri}/weights")
    assert {*range(0, 25, 3)} <= set(kept.versions()), "what has a checkpoint lasts"
    recorded = dict(run.weights.select("policy_version", "checksum").collect().iter_rows())
    assert all(fingerprint(kept.read(v)) == recorded[v] for v in kept.versions())
