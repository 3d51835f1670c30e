"""Published weights in the memory of a Mooncake store (ROLLART section 6.2).

    <run>/index/00000041                  the index of versions (`index`)
    <run>/v000012-3f9c21d0-8/manifest     the manifest of one attempt to publish version 12
    <run>/v000012-3f9c21d0-8/00003        bucket 3 of its 8 buckets
    <run>/v000012-3f9c21d0-8/digests      the digests of the buckets; put last

No key outlives the master: after its restart all keys are gone, readers keep the tensors they have
read, and the publisher publishes again. The invariant: every attempt puts its own keys, which never
change, and a reader checks the size and digest of each bucket, so it gets all tensors of one
version or an error. A reader that follows a version reads each bucket once it is put.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING
from uuid import uuid4

from rollart_flow.errors import VersionMissingError, WeightsError
from rollart_flow.weights.base import Manifest, WeightStore
from rollart_flow.weights.buckets import (
    BUCKET_BYTES,
    layout_of,
    pack,
    parts,
    pull,
    tensors_in,
)
from rollart_flow.weights.following import Following, announce
from rollart_flow.weights.mooncake.buckets import Described, digest
from rollart_flow.weights.mooncake.client import MooncakeClient, SegmentFullError
from rollart_flow.weights.mooncake.index import Index, IndexLog
from rollart_flow.weights.transport import TCP, TransferSettings

if TYPE_CHECKING:
    import torch


class MooncakeWeightStore(WeightStore):
    """Weight versions of one run. Any number of processes may read; one publishes and collects.

    The store connects at first use. Calls from several threads are serialized.

    Args:
        address: HOST:PORT of the master.
        run: prefix of the keys; unique among all users of the same master.
        transfer: protocol and devices of the transfer.
        bucket_bytes: size of a bucket.
    """

    def __init__(
        self,
        address: str,
        run: str,
        *,
        transfer: TransferSettings = TCP,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._address = address
        self._run = run
        self._transfer = transfer
        self._bucket_bytes = bucket_bytes
        self._lock = threading.Lock()
        self._connected: tuple[MooncakeClient, IndexLog] | None = None

    def uri(self, version: int) -> str:
        """Return the address of a version in the store."""
        return f"mooncake:{self._run}/v{version:06d}"

    def _publish(
        self, made: Manifest, tensors: Mapping[str, torch.Tensor], *, lasting: bool
    ) -> None:
        """Put the version into memory and make it readable.

        Raises:
            WeightsError: no memory is left, or the master does not answer.
        """
        with self._using(f"version {made.version} was not published") as (client, log):
            if self._holds(client, log.newest(), made):
                return
            layout = layout_of(made.tensors)
            count = -(-layout.size // self._bucket_bytes)
            name = f"v{made.version:06d}-{uuid4().hex[:8]}-{count}"
            log.change(lambda now: replace(now, leaving=(*now.leaving, name)))
            described = Described(made, self._bucket_bytes)
            self._put(client, self._manifest(name), described.encode())
            digests = self._put_buckets(client, log, name, parts(tensors, layout))
            self._put(client, self._digests(name), json.dumps(digests).encode())
            log.change(lambda now: now.with_published(made.version, name))
            self._collect(client, log)

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """Return all tensors of a version in separate memory, into which the buckets are read.

        Received buckets are checked while the rest arrives.
        """
        with self._using(f"weights of version {version} cannot be read") as (client, log):
            name = self._name(log.newest(), version)
            return self._receive(client, log, name, Following(patience_s=0))

    def follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        with self._using(f"weights of version {version} cannot be read") as (client, log):
            name = following.wait_for(lambda: log.newest().begun(version), "the version")
            return self._receive(client, log, name, following)

    def _receive(
        self, client: MooncakeClient, log: IndexLog, name: str, following: Following
    ) -> dict[str, torch.Tensor]:
        """Read the keys of an attempt, which may be putting them; its digests are the last."""

        def there(key: str) -> bool | None:
            if client.existing([key])[0]:
                return True
            if name in (index := log.newest()).leaving or name in index.published.values():
                return None
            raise WeightsError(f"{name} was removed, or never was whole")

        def small(key: str) -> bytes:
            following.wait_for(lambda: there(key), key)
            return client.get(key)

        described = Described.decode(small(self._manifest(name)))
        layout = layout_of(described.manifest.tensors)
        memory = client.received.take(layout.size)

        def fetch(number: int, part: torch.Tensor) -> None:
            key = self._bucket(name, number)
            following.wait_for(lambda: there(key), key)
            client.get_part(key, part)

        received = [digest(part) for part in pull(memory, described.bucket_bytes, fetch, following)]
        if received != json.loads(small(self._digests(name))):
            raise WeightsError(
                "they are damaged: their checksum differs; publish the version again"
            )
        return tensors_in(layout, memory)

    def manifest(self, version: int) -> Manifest:
        with self._using(f"the manifest of version {version} cannot be read") as (client, log):
            return self._described(client, self._name(log.newest(), version)).manifest

    def versions(self) -> tuple[int, ...]:
        with self._using("the versions cannot be listed") as (_, log):
            return tuple(sorted(log.newest().published))

    def remove(self, versions: Collection[int]) -> tuple[int, ...]:
        """Remove versions; those that are being read stay in memory until a later call."""

        def without(now: Index) -> Index:
            left = {v: name for v, name in now.published.items() if v not in versions}
            gone = (name for v, name in now.published.items() if v in versions)
            return replace(now, published=left, leaving=(*now.leaving, *gone))

        with self._using("old versions were not removed") as (client, log):
            there = tuple(sorted({*versions} & log.newest().published.keys()))
            log.change(without)
            self._collect(client, log)
        return there

    def close(self) -> None:
        """Close the connection; published versions remain."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connected is not None:
            self._connected[0].close()
            self._connected = None

    @contextmanager
    def _using(self, what: str) -> Iterator[tuple[MooncakeClient, IndexLog]]:
        """Provide the connection, reopened if the master restarted; errors name the operation."""
        with self._lock:
            try:
                if self._connected is not None and not self._connected[0].answered():
                    self._disconnect()
                if self._connected is None:
                    client = MooncakeClient(self._address, self._transfer)
                    self._connected = client, IndexLog(client, self._run)
                yield self._connected
            except WeightsError as error:
                raise type(error)(f"{what}: {error.message}") from error

    def _put_buckets(
        self, client: MooncakeClient, log: IndexLog, name: str, content: Iterable[memoryview]
    ) -> list[str]:
        """Put all buckets of a version, each while the next is filled, verify that they are stored,
        and return their digests."""
        import torch

        sizes, digests = list[int](), list[str]()
        put: Future[None] | None = None
        with _thread("push") as pushing:
            staging = cycle(b.numpy().data for b in client.staging(self._bucket_bytes))
            for bucket in pack(content, staging):
                part = torch.frombuffer(bucket, dtype=torch.uint8)
                digests.append(digest(part))
                if put is not None:
                    put.result()
                key = self._bucket(name, len(sizes))
                put = pushing.submit(self._put_bucket, client, log, name, key, part)
                sizes.append(part.numel())
            if put is not None:
                put.result()
        for number, size in enumerate(sizes):
            client.check_stored(self._bucket(name, number), size)
        return digests

    def _put_bucket(
        self, client: MooncakeClient, log: IndexLog, name: str, key: str, part: torch.Tensor
    ) -> None:
        """Put one bucket; if memory is exhausted, collect old keys and retry.

        If the retry fails, all keys of this attempt are removed.
        """
        try:
            client.put_part(key, part)
        except SegmentFullError:
            self._collect(client, log, spare=name)
            try:
                client.put_part(key, part)
            except SegmentFullError as error:
                self._collect(client, log)
                raise type(error)(
                    f"{error.message}; keep fewer versions or give it a larger segment"
                ) from error
        announce()

    def _put(self, client: MooncakeClient, key: str, value: bytes) -> None:
        client.put(key, value)
        client.check_stored(key, len(value))

    def _collect(self, client: MooncakeClient, log: IndexLog, *, spare: str = "") -> None:
        """Remove keys to be collected, unless a reader may still use them."""
        gone = {
            name
            for name in log.newest().leaving
            if name != spare and client.remove(self._keys(name))
        }
        log.change(lambda now: now.without(gone))

    def _holds(self, client: MooncakeClient, index: Index, made: Manifest) -> bool:
        """Return whether a version exists, whole and equal; a damaged one may be replaced."""
        if made.version not in index.published:
            return False
        name = self._name(index, made.version)
        try:
            there = self._described(client, name)
        except WeightsError:
            return False
        if there.manifest.checksum != made.checksum:
            raise WeightsError(
                "it was published with other tensors; a version is never replaced, "
                "publish under the next number"
            )
        return all(client.existing(self._keys(name)))

    def _name(self, index: Index, version: int) -> str:
        """Return the name of a version in the index."""
        name = index.published.get(version)
        if name is None:
            there = ", ".join(map(str, sorted(index.published))) or "none"
            raise VersionMissingError(
                f"no weights of version {version} of {self._run} at {self._address}; there: {there}"
            )
        return name

    def _described(self, client: MooncakeClient, name: str) -> Described:
        return Described.decode(client.get(self._manifest(name)))

    def _keys(self, name: str) -> list[str]:
        count = int(name.rpartition("-")[2])
        buckets = (self._bucket(name, number) for number in range(count))
        return [self._manifest(name), *buckets, self._digests(name)]

    def _manifest(self, name: str) -> str:
        return f"{self._run}/{name}/manifest"

    def _digests(self, name: str) -> str:
        return f"{self._run}/{name}/digests"

    def _bucket(self, name: str, number: int) -> str:
        return f"{self._run}/{name}/{number:05d}"


def _thread(what: str) -> ThreadPoolExecutor:
    """Create a pool of one thread, joined when its context ends."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"weights-{what}")
