"""The image cache: tiers, locks between processes, crashes, eviction, retries and counters."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollart_flow.errors import ImageError, ImagePullError, SettingsError
from rollart_flow.retries import RetryPolicy
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.digest import AboutImage, ImageConfig, describe
from rollart_flow.sandbox.images.settings import cache_from, default_cache, use_cache
from tests.sandbox.images.builders import tree

QUICK = RetryPolicy(limit_s=30, backoff_s=1e-4, backoff_cap_s=1e-4)
NEVER = RetryPolicy(limit_s=0)


class Faulty:
    """A cache of another node that fails in ways that tests choose."""

    name = "peer"

    def __init__(self, cache: ImageCache, failures: int = 0, damage: bytes = b"") -> None:
        self.cache = cache
        self.failures = failures
        self.damage = damage
        self.asked = 0

    def about(self, digits: str) -> AboutImage | None:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the node is away")
        return self.cache.about(digits)

    def pieces(self, digits: str) -> Iterator[bytes]:
        for piece in self.cache.pieces(digits):
            yield piece[: -len(self.damage)] + self.damage if self.damage else piece


@pytest.fixture
def origin(tmp_path: Path) -> ImageCache:
    """The cache of a node that has images."""
    return ImageCache(tmp_path / "origin")


def add(cache: ImageCache, tmp_path: Path, name: str, size: int = 10) -> str:
    """Add an image with one file; return its digest."""
    return cache.add(tree(tmp_path / f"source-{name}", file=name * size)).rpartition(":")[2]


def leftovers(cache: ImageCache) -> list[str]:
    """What the folder of a cache has beside its images."""
    folder = cache.local.folder
    return [*os.listdir(folder / "work"), *sorted(set(os.listdir(folder / "locks")))]


def test_an_image_has_a_digest_and_a_name(tmp_path: Path, origin: ImageCache) -> None:
    source = tree(tmp_path / "source", etc__release="1")
    image = origin.add(source, name="team/base:1", config=ImageConfig(env={"A": "1"}))
    name, _, digest = image.partition("@")
    assert (name, origin.digest("team/base:1")) == ("team/base:1", digest)
    assert origin.digest("other") is None
    assert origin.add(source, config=ImageConfig(env={"A": "1"})) == digest
    with origin.acquire(image) as lease, origin.acquire(digest) as second:
        assert lease.root == second.root == origin.path(image)
        assert (lease.root / "etc" / "release").read_text() == "1"
        assert lease.about == describe(lease.root, ImageConfig(env={"A": "1"}))
    (source / "etc" / "release").write_text("2")
    assert origin.add(source, name="team/base:1") != image
    assert origin.digest("team/base:1") != digest
    assert origin.counters.hits == {"disk": 3}
    for wrong in ("base", "sha256:12", "a@b@sha256:" + "0" * 64):
        with pytest.raises(ImageError, match=r"is no image; write sha256"):
            origin.acquire(wrong)
    with pytest.raises(ImageError, match=r"neither on this node nor on a peer"):
        origin.acquire("sha256:" + "0" * 64)
    assert not os.listdir(origin.local.folder / "work")


def test_an_image_comes_from_memory_then_disk_then_peer_then_store(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    digits = add(ImageCache(tmp_path / "origin", store=store), tmp_path, "a")
    first = ImageCache(
        tmp_path / "first", memory=tmp_path / "memory", memory_bytes=1 << 20, store=store
    )
    second = ImageCache(tmp_path / "second", peers=[first], store=store)
    image = f"sha256:{digits}"
    for _ in range(3):
        with first.acquire(image) as lease:
            assert lease.root.is_relative_to(tmp_path / "memory")
    with second.acquire(image) as lease:
        assert (lease.root / "file").read_text() == "a" * 10
    assert first.counters.hits == {"store": 1, "memory": 2}
    assert second.counters.hits == {"cache": 1}
    assert second.counters.pulls == {"cache": 1}
    again = ImageCache(tmp_path / "first", memory=tmp_path / "other", memory_bytes=1 << 20)
    again.acquire(image).release()
    again.acquire(image).release()
    assert again.counters.hits == {"disk": 1, "memory": 1}
    small = ImageCache(tmp_path / "first", memory=tmp_path / "small", memory_bytes=4096)
    with small.acquire(image) as lease:
        assert lease.root.is_relative_to(tmp_path / "first")
    counted = second.counters.row()
    assert counted["pulled_bytes"] > 0
    assert counted["pull_s"] > 0
    assert json.loads(json.dumps(counted)) == counted


def test_a_failed_pull_is_repeated_and_then_the_next_place_is_asked(
    tmp_path: Path, origin: ImageCache
) -> None:
    digits = add(origin, tmp_path, "a")
    passing, lost = Faulty(origin, failures=3), Faulty(origin, failures=10**9)
    cache = ImageCache(tmp_path / "cache", peers=[passing], retries=QUICK)
    cache.acquire(f"sha256:{digits}").release()
    assert (cache.counters.retries, cache.counters.failures, passing.asked) == (3, 0, 4)
    cache = ImageCache(tmp_path / "other", peers=[lost, Faulty(origin)], retries=NEVER)
    cache.acquire(f"sha256:{digits}").release()
    assert (cache.counters.failures, cache.counters.pulls) == (1, {"peer": 1})
    cache = ImageCache(tmp_path / "third", peers=[lost, lost], retries=NEVER)
    with pytest.raises(ImagePullError, match=r"be pulled: peer: the node is away .*; peer: the"):
        cache.acquire(f"sha256:{digits}")
    assert leftovers(cache) == []


@pytest.mark.parametrize("damage", [b"x" * 8, b"y" * 200])
def test_what_was_damaged_on_its_way_is_never_used(
    tmp_path: Path, origin: ImageCache, damage: bytes
) -> None:
    digits = add(origin, tmp_path, "a", size=5000)
    damaged = Faulty(origin, damage=damage)
    cache = ImageCache(tmp_path / "cache", peers=[damaged, origin], retries=NEVER)
    with cache.acquire(f"sha256:{digits}") as lease:
        assert describe(lease.root, lease.about.config) == lease.about
    assert cache.counters.failures == 1


def test_another_image_under_a_digest_is_refused(tmp_path: Path, origin: ImageCache) -> None:
    wanted, other = add(origin, tmp_path, "a"), add(origin, tmp_path, "b")

    class Wrong(Faulty):
        def pieces(self, digits: str) -> Iterator[bytes]:
            return super().pieces(other)

    cache = ImageCache(tmp_path / "cache", peers=[Wrong(origin)], retries=NEVER)
    with pytest.raises(ImagePullError, match="what it sent has the digest"):
        cache.acquire(f"sha256:{wanted}")
    assert leftovers(cache) == []


PULLER = """
    import json, os, signal, sys
    from pathlib import Path
    from rollart_flow.sandbox.images.cache import ImageCache

    class Dying:
        name = "dying"

        def about(self, digits):
            return origin.about(digits)

        def pieces(self, digits):
            piece = b"".join(origin.pieces(digits))
            yield piece[: len(piece) // 2]
            os.kill(os.getpid(), signal.SIGKILL)

    origin, kind, digits = ImageCache(Path(sys.argv[1])), sys.argv[3], sys.argv[4]
    cache = ImageCache(Path(sys.argv[2]), peers=[Dying() if kind == "dying" else origin])
    print("ready", flush=True)
    sys.stdin.readline()
    with cache.acquire("sha256:" + digits) as lease:
        print(json.dumps(cache.counters.row() | {"file": (lease.root / "file").stat().st_size}))
"""


def puller(origin: ImageCache, folder: Path, kind: str, digits: str) -> subprocess.Popen[str]:
    """A process that pulls an image once it gets a line."""
    arguments = [str(origin.local.folder), str(folder), kind, digits]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PULLER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_and_threads_of_a_node_pull_an_image_once(
    tmp_path: Path, origin: ImageCache
) -> None:
    digits = add(origin, tmp_path, "a", size=300_000)
    pullers = [puller(origin, tmp_path / "node", "sound", digits) for _ in range(2)]
    cache = ImageCache(tmp_path / "node", peers=[origin])
    with ThreadPoolExecutor(3) as threads:
        ours = [threads.submit(cache.acquire, f"sha256:{digits}") for _ in range(3)]
        outputs = [process.communicate("\n")[0] for process in pullers]
        for lease in ours:
            lease.result().release()
    rows = [cache.counters.row(), *map(json.loads, outputs)]
    assert sum(sum(row["pulls"].values()) for row in rows) == 1
    assert sum(sum(row["hits"].values()) for row in rows) == 5
    assert {row["file"] for row in rows[1:]} == {300_000}
    assert leftovers(cache) == [digits]


def test_a_process_that_is_killed_in_a_pull_leaves_nothing_that_is_used(
    tmp_path: Path, origin: ImageCache
) -> None:
    digits = add(origin, tmp_path, "a", size=300_000)
    process = puller(origin, tmp_path / "node", "dying", digits)
    assert process.communicate("\n")[0] == ""
    assert process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path / "node" / "work") == [digits]
    cache = ImageCache(tmp_path / "node", peers=[origin])
    assert cache.about(digits) is None
    assert leftovers(cache) == []
    with cache.acquire(f"sha256:{digits}") as lease:
        assert (lease.root / "file").stat().st_size == 300_000


def test_images_that_were_used_least_recently_make_room(tmp_path: Path) -> None:
    size = 2 * 4096  # of an image with one small file: the entry, and its content
    cache = ImageCache(tmp_path / "cache", max_bytes=3 * size)
    a, b, c = (add(cache, tmp_path, name) for name in "abc")
    for time_s, digits in enumerate((b, c, a)):
        os.utime(cache.local.folder / "trees" / digits, (time_s, time_s))
    held = cache.acquire(f"sha256:{b}")
    d = add(cache, tmp_path, "d")
    assert set(cache.local.images()) == {a, b, d}
    assert cache.counters.evictions == 1
    held.release()
    held.release()
    os.utime(cache.local.folder / "trees" / b, (1, 1))
    e = add(cache, tmp_path, "e")
    assert set(cache.local.images()) == {a, d, e}
    leases = [cache.acquire(f"sha256:{digits}") for digits in (a, d, e)]
    with pytest.raises(ImageError, match=r"has no room for an image of 1 MiB; .*close boxes"):
        add(cache, tmp_path, "f")
    for lease in leases:
        lease.release()
    with pytest.raises(ImageError, match=r"larger than the 0 MiB|no room"):
        add(cache, tmp_path, "g", size=30_000)
    assert cache.local.size() <= 3 * size
    assert sorted(leftovers(cache)) == sorted([a, d, e])


def test_an_evicted_image_is_made_or_pulled_again(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "cache")
    made = []

    def make() -> str:
        made.append(1)
        return "sha256:" + add(cache, tmp_path, "a")

    digest = cache.once("key", make)
    assert cache.once("key", make) == digest
    assert len(made) == 1
    assert cache.local.evict(digest.rpartition(":")[2])
    assert cache.once("key", make) == digest
    assert len(made) == 2


def test_variables_describe_the_cache_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cache_from({"ROLLART_IMAGES": str(tmp_path / "a"), "ROLLART_IMAGES_GB": "0.5"})
    assert (found.local.folder, found.local.max_bytes) == (tmp_path / "a", 1 << 29)
    for name in ("ROLLART_IMAGES_GB", "ROLLART_IMAGES_MEMORY_GB"):
        for text in ("much", "-1", "inf", "nan"):
            with pytest.raises(SettingsError, match=f"{name}='{text}' is no size"):
                cache_from({"ROLLART_IMAGES": str(tmp_path / "b"), name: text})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("ROLLART_IMAGES", "ROLLART_IMAGES_STORE", "ROLLART_IMAGES_MEMORY_GB"):
        monkeypatch.delenv(name, raising=False)
    use_cache(None)
    try:
        assert default_cache().local.folder == tmp_path / "rollart_flow" / "images"
        assert default_cache() is default_cache()
        use_cache(found)
        assert default_cache() is found
    finally:
        use_cache(None)


def test_a_store_that_is_named_gets_what_is_added(tmp_path: Path) -> None:
    environ: Mapping[str, str] = {
        "ROLLART_IMAGES": str(tmp_path / "a"),
        "ROLLART_IMAGES_STORE": str(tmp_path / "store"),
    }
    digits = add(cache_from(environ), tmp_path, "a")
    other = cache_from({**environ, "ROLLART_IMAGES": str(tmp_path / "b")})
    other.acquire(f"sha256:{digits}").release()
    assert other.counters.pulls == {"store": 1}
    piece = next((tmp_path / "store" / digits).glob("*/000000"))
    piece.unlink()
    third = ImageCache(tmp_path / "c", store=str(tmp_path / "store"), retries=NEVER)
    with pytest.raises(ImagePullError, match="has lost piece 0"):
        third.acquire(f"sha256:{digits}")
    (tmp_path / "store" / digits / "about.json").write_text("{}")
    with pytest.raises(ImagePullError, match="damaged description"):
        third.acquire(f"sha256:{digits}")
