"""Resets over the image cache with injected failures, and the start of a copy-on-write box.

20,000 resets (`ROLLART_BENCH_RESETS=100000` for the whole soak) go through the real cache and the
real pool, with views in place of boxes (`views`): acquire an image by digest, mount its
copy-on-write view, hand it out, give it back. One pull and one start in a hundred fail. The boxes
of bubblewrap after that are real, in fewer resets with the same failures.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rollart_flow.errors import SandboxError
from rollart_flow.retries import RetryPolicy
from rollart_flow.sandbox.base import Sandbox, SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.digest import AboutImage, ImageConfig
from rollart_flow.sandbox.images.settings import use_cache
from rollart_flow.sandbox.pool import SandboxPool
from rollart_flow.sandbox.pool_boxes import BoxRecord, BoxUser, Create
from rollart_flow.sandbox.pool_demand import PoolSettings
from rollart_flow.sandbox.registry import SANDBOXES, create_sandbox
from tests.benchmarks.records import CannotRunError, Record, record
from tests.benchmarks.views import Views, own_mounts

RESETS = int(os.environ.get("ROLLART_BENCH_RESETS", "20000"))
BOXES, STARTS = 3_000, 40
FAILING = 0.01
"""Fraction of the pulls and of the starts that fail."""
IMAGES, FITTING = 32, 28
"""Images that attempts ask for, and how many of them the cache holds at a time."""
GROUP = 8
"""Attempts in a row that ask for one image, as those of a group do."""
TOGETHER = 4
RETRIES = RetryPolicy(limit_s=10, backoff_s=0.001, backoff_cap_s=0.01)
LIMITS = SandboxLimits(memory_mb=64, disk_mb=8, processes=16)


@dataclass(frozen=True, slots=True)
class Soaked:
    """The outcome of many resets."""

    resets: int
    failed: int
    """Attempts that got no box."""
    start_failures: int
    pull_failures: int
    pulls: int
    evictions: int
    warm_ms: tuple[float, float]
    """Median and 99th percentile of a reset whose image was on the node [ms]."""
    seconds: float
    left: Sequence[str]
    """Mounts, files, processes, locks and boxes that were left behind."""


class FailingPeer:
    """A cache of another node; one pull in a hundred fails at its beginning or in its middle."""

    name = "peer"

    def __init__(self, cache: ImageCache, chance: Random) -> None:
        self._cache = cache
        self._chance = chance
        self.failures = 0

    def about(self, digits: str) -> AboutImage | None:
        if self._chance.random() < FAILING / 2:
            self.failures += 1
            raise ConnectionError("told to fail")
        return self._cache.about(digits)

    def pieces(self, digits: str) -> Iterator[bytes]:
        cut = self._chance.random() < FAILING / 2
        self.failures += cut
        for piece in self._cache.pieces(digits):
            yield piece[: len(piece) // 2] if cut else piece


def run() -> Iterator[Record]:
    """Figures of resets; takes about two minutes."""
    if problem := SANDBOXES.load("bubblewrap").problem():
        raise CannotRunError(problem)
    soaked = in_own_mounts("views", RESETS)
    yield from _records("views", soaked)
    yield from _records("bubblewrap boxes", in_own_mounts("boxes", BOXES))
    yield from asyncio.run(_starts())


def _records(kind: str, soaked: Soaked) -> Iterator[Record]:
    found = (
        f"failed starts: {soaked.start_failures}, failed pulls: {soaked.pull_failures} of "
        f"{soaked.pulls}, evictions: {soaked.evictions}, {soaked.seconds:.0f} s"
    )
    share = 100 * (1 - soaked.failed / soaked.resets)
    name = f"images: {soaked.resets} resets of {kind}"
    yield record(f"{name}, success", share, "%", at_least=99.99, peer=found)
    yield record(
        f"{name}, left behind", len(soaked.left), "", at_most=0, peer=" ".join(soaked.left)
    )
    yield record(f"{name}, warm, median", soaked.warm_ms[0], "ms")
    yield record(f"{name}, warm, 99th percentile", soaked.warm_ms[1], "ms")


def in_own_mounts(kind: str, resets: int) -> Soaked:
    """Soak in a process with mounts of its own, so that leaked ones can be counted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_images", kind, str(resets)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    parts: dict[str, Any] = json.loads(done.stdout)
    parts.update(warm_ms=tuple(parts["warm_ms"]), left=tuple(parts["left"]))
    return Soaked(**parts)


def soak(kind: str, resets: int, folder: Path) -> Soaked:
    """Reset over and over in this process; see the module."""
    chance = Random(18)
    origin = ImageCache(folder / "origin")
    images = [_add(origin, folder, number) for number in range(IMAGES)]
    peer = FailingPeer(origin, chance)
    size = origin.local.size() // IMAGES * FITTING
    cache = ImageCache(folder / "cache", max_bytes=size, peers=[peer], retries=RETRIES)
    (folder / "views").mkdir()
    views = Views(cache, folder / "views", FAILING, chance)
    use_cache(cache)
    boxes = FailingStarts(chance)
    began, mounts = time.monotonic(), _mounts()
    failed, times = asyncio.run(_play(views if kind == "views" else boxes, images, resets, cache))
    seconds = time.monotonic() - began
    left = [
        *(_mounts() - mounts),
        *os.listdir(folder / "views"),
        *os.listdir(cache.local.folder / "work"),
        *(set(os.listdir(cache.local.folder / "locks")) - set(cache.local.images())),
        *(digits for digits in cache.local.images() if not cache.local.evict(digits)),
    ]
    cuts = statistics.quantiles(times, n=100)
    counters = cache.counters
    return Soaked(
        resets, failed, views.failures + boxes.failures, peer.failures, counters.pulls["peer"],
        counters.evictions, (cuts[49] * 1e3, cuts[98] * 1e3), seconds, left,
    )  # fmt: skip


class FailingStarts:
    """Starts boxes of bubblewrap, one in a hundred of which fails."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.failures = 0

    async def __call__(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        """Start a box; see `SandboxVariant.create`."""
        box = await create_sandbox(spec, snapshot=snapshot)
        if self._chance.random() < FAILING:
            self.failures += 1
            await box.close()
            raise SandboxError("the sandbox did not start: told to fail")
        return box


async def _play(
    create: Create, images: Sequence[str], resets: int, cache: ImageCache
) -> tuple[int, list[float]]:
    """Reset in several attempts at a time; return how many got no box, and the times of others."""
    settings = replace(PoolSettings(), backoff_s=0.001, starts_at_once=TOGETHER)
    ended: list[BoxRecord] = []
    pool = SandboxPool(create, settings, ended.append, partial(datetime.now, UTC))
    numbers, times, failed = iter(range(resets)), [], 0

    async def attempts() -> None:
        nonlocal failed
        for number in numbers:
            image = images[number // GROUP % 97 * 31 % len(images)]
            user = BoxUser(
                session=f"s{number}", trajectory_id=f"t{number}", task_id=f"task{number}",
                domain="domain", holder="holder", lease_s=600,
            )  # fmt: skip
            spec = SandboxSpec(image=image, writable=True, limits=LIMITS)
            pool.renew("holder")
            warm, before = cache.about(image.rpartition(":")[2]), time.perf_counter()
            try:
                await pool.open(user, 0, spec)
                if warm is not None:
                    times.append(time.perf_counter() - before)
            except SandboxError:
                failed += 1
            pool.release(user.session)

    await asyncio.gather(*(attempts() for _ in range(TOGETHER)))
    await pool.close()
    assert sum(row.ready_at is not None for row in ended) == resets - failed
    return failed, times


def _add(cache: ImageCache, folder: Path, number: int) -> str:
    source = folder / f"source{number}"
    source.mkdir()
    (source / "file").write_text("of the image")
    (source / "number").write_text(str(number))
    return cache.add(source, config=ImageConfig(host=True))


def _mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


async def _starts() -> list[Record]:
    """Times of boxes with and without an image, taken in turns."""
    with tempfile.TemporaryDirectory() as folder:
        cache = ImageCache(Path(folder, "cache"))
        use_cache(cache)
        image = _add(cache, Path(folder), 0)
        specs = {
            "without an image": SandboxSpec(),
            "read-only": SandboxSpec(image=image),
            "copy-on-write": SandboxSpec(image=image, writable=True),
        }
        times: dict[str, list[float]] = {name: [] for name in specs}
        for _ in range(STARTS):
            for name, spec in specs.items():
                began = time.perf_counter()
                box = await create_sandbox(spec)
                times[name].append(time.perf_counter() - began)
                await box.close()
        use_cache(None)
    plain, read_only, written = (statistics.median(found) * 1e3 for found in times.values())
    peer = f"without an image {plain:.1f} ms, read-only {read_only:.1f} ms"
    return [
        record("images: copy-on-write box ready, median", written, "ms", at_most=117, peer=peer)
    ]


if __name__ == "__main__":
    if sys.argv[1] == "views":
        own_mounts()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asdict(soak(sys.argv[1], int(sys.argv[2]), Path(place)))))
