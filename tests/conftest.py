"""What tests of several rooms share: a real run, made once."""

import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from fcntl import LOCK_EX, flock

import pytest
from hypothesis import settings
from xdist.remote import Producer

from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import Run, open_run
from rollart_flow.store.blobs import FSYNC_VARIABLE
from rollart_flow.ui.demo.run import write_demo_run
from tests.local_ray import SHARED_RAY
from tests.logged import Logged
from tests.spread import ByGroup, group_of, longest_first, scheduler

pytest_plugins = ["rollart_flow.simulation.pytest_plugin"]

# The same examples in every run, and no verdict that depends on how busy the machine is.
settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")

_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error that there is before output is captured.

    Collecting tests makes millions of objects that stay: to look for garbage among them again and
    again would take longer than to make them. A shell has what it starts in the background ignore
    SIGINT, and so would the commands that tests interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_STDERR] = os.dup(2)
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among modules and collected tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a crash say where it was: Ray takes the handlers of fatal signals away when it ends."""
    faulthandler.disable()
    faulthandler.enable(item.config.stash[_STDERR])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what files of a group share after the last test: idle processes take time of others."""
    if nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid):
        _end_what_is_shared()


def pytest_sessionfinish() -> None:
    """End it where tests were interrupted, too."""
    _end_what_is_shared()


def _end_what_is_shared() -> None:
    SHARED_RAY.end()
    if gang := sys.modules.get("tests.trainers.gang"):
        gang.SHARED_GANG.end()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give it back."""
    faulthandler.disable()
    os.close(config.stash[_STDERR])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that all processes end at about the same time.

    The modules whose tests share a Ray follow each other: any other Ray ends the shared one.
    """
    longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup | None:
    """Give the files of a group to one process."""
    return scheduler(config, log)


@pytest.fixture(scope="session", autouse=True)
def disk_that_nobody_waits_for() -> Iterator[None]:
    """What a process has written outlives it; only a power cut takes what the disk has not got.

    No test cuts the power: those of it note what is synced (`tests.store.power`).
    """

    def synced(handle: int) -> None:
        os.fstat(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FSYNC_VARIABLE, "0")  # for other processes
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "fdatasync", synced)
        yield


@pytest.fixture(scope="module")
def shared_ray() -> None:
    """A Ray of this machine, as a run starts it, for all tests of this process."""
    SHARED_RAY.start("run")


@pytest.fixture(scope="module")
def ray_of_gpus() -> None:
    """A Ray that says that it has two GPUs and no resource class, for all tests of this process."""
    SHARED_RAY.start("gpus")


@pytest.fixture(scope="module")
def ray_of_classes() -> None:
    """A Ray that has `tests.local_ray.CLASSES`, for all tests of this process."""
    SHARED_RAY.start("classes")


@pytest.fixture(scope="module")
def ray_of_nodes() -> None:
    """A Ray of three nodes for all tests of this process: CPUs, four H800s, three H20s."""
    SHARED_RAY.start("nodes")


@pytest.fixture
def logged() -> Iterator[Logged]:
    """What is logged while the test runs."""
    handler, root = Logged(), logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


FINISHED_STEPS = 4
SMALL_PIPELINE = '''"""Two domains and a small model: a real run that takes seconds."""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake


def shaped(trajectory):
    """The environment's reward and a little for the spelling, so that no group is all equal."""
    earned = sum(turn.reward for turn in trajectory.turns)
    spelling = sum(trajectory.token_ids) % 97 / 970
    return earned + spelling, {"environment": earned, "spelling": spelling}


policy = Policy.tiny(hidden=32)
lake, sums = FrozenLake(size=4), Arithmetic(digits=1)
prompts = tasks(lake, sums, group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, max_turns=3)
batches = buffer(reward(trajectories, shaped), batch_size=16, alpha=1)
steps = train(batches, policy, grpo(), steps=4, checkpoint_every=2, keep_versions=2)
scores = evaluate(
    policy, lake, every=1, episodes=2, max_tokens=6, max_turns=3, temperature=0.7, top_p=0.9
)
pipeline = Pipeline("small", steps, scores)
'''
"""Source of the pipeline of `finished_run`: every version is evaluated, so has trajectories."""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of `SMALL_PIPELINE` in this process: four steps, checkpoints at 2 and 4.

    It is shared, also by the processes of pytest-xdist, of which the first one makes it: read it,
    and copy it (`tests.copies`) to change anything.
    """
    from rollart_flow import runner

    store = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        store = store.parent  # the folders of all processes lie there
    with open(store / "finished.lock", "w") as lock:
        flock(lock, LOCK_EX)
        if not (store / "small").exists():
            loaded = load_source(SMALL_PIPELINE, store / "small.py")
            runner.run(loaded, store=str(store), name="small", executor="inline")
    return open_run(str(store / "small"))


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demonstration run, which has rows of every kind."""
    return write_demo_run(tmp_path_factory.mktemp("demo"))
