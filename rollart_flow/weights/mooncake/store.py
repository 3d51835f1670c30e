"""Published weights in the memory of a Mooncake store (ROLLART section 6.2).

    <run>/index/00000041                  the index of versions (`index`)
    <run>/v000012-3f9c21d0-8/00003        bucket 3 of the 8 of version 12, of one attempt
    <run>/v000012-3f9c21d0-8/manifest     the manifest with the checksum; put last

No key outlives the master: after its restart all keys are gone, readers keep the tensors they have
read, and the publisher publishes again. The invariant: every attempt puts its own keys, which never
change, and a reader checks the size and digest of each bucket, so it gets all tensors of one
version or an error.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, WeightStore, entries_of
from rollart_flow.weights.mooncake.buckets import (
    BUCKET_BYTES,
    Packed,
    decode_packed,
    digest,
    encode_packed,
    pack,
    packed_bytes,
    unpack,
)
from rollart_flow.weights.mooncake.client import MooncakeClient, SegmentFullError
from rollart_flow.weights.mooncake.index import Index, IndexLog

if TYPE_CHECKING:
    import torch


class MooncakeWeightStore(WeightStore):
    """Weight versions of one run. Any number of processes may read; one publishes and collects.

    The store connects at first use. Calls from several threads are serialized.

    Args:
        address: HOST:PORT of the master.
        run: prefix of the keys; unique among all users of the same master.
        bucket_bytes: size of a bucket; a multiple of 64.
    """

    def __init__(
        self,
        address: str,
        run: str,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._address = address
        self._run = run
        self._bucket_bytes = bucket_bytes
        self._lock = threading.Lock()
        self._connected: tuple[MooncakeClient, IndexLog] | None = None

    def uri(self, version: int) -> str:
        """Return the address of a version in the store."""
        return f"mooncake:{self._run}/v{version:06d}"

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Put the version into memory and make it readable.

        Raises:
            WeightsError: no memory is left, or the master does not answer.
        """
        using = self._using(f"version {version} was not published")
        with using as (client, log), _thread("hash") as hashing:
            made = hashing.submit(self.describe, version, tensors, checksum)
            index = log.newest()
            if version not in index.published or not self._holds(client, index, made.result()):
                count = -(-packed_bytes(entries_of(tensors)) // self._bucket_bytes)
                name = f"v{version:06d}-{uuid4().hex[:8]}-{count}"
                log.change(lambda now: replace(now, leaving=(*now.leaving, name)))
                digests = self._put_buckets(client, log, name, tensors)
                packed = Packed(made.result(), self._bucket_bytes, digests)
                self._put_manifest(client, name, packed)
                log.change(lambda now: _with_published(now, version, name))
                self._collect(client, log)
        return made.result()

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """Return all tensors of a version in separate memory, into which the buckets are read.

        Received buckets are checked while the rest arrives.
        """
        with self._using(f"weights of version {version} cannot be read") as (client, log):
            name, packed = self._find(client, log.newest(), version)
            whole = client.received.take(packed_bytes(packed.manifest.tensors))

            def fetch(number: int) -> torch.Tensor:
                begin = number * packed.bucket_bytes
                part = whole[begin : begin + packed.bucket_bytes]
                client.get_part(self._bucket(name, number), part)
                return part

            with _thread("pull") as pulling:
                numbers = range(-(-whole.numel() // packed.bucket_bytes))
                return unpack(packed, whole, pulling.map(fetch, numbers))

    def manifest(self, version: int) -> Manifest:
        with self._using(f"the manifest of version {version} cannot be read") as (client, log):
            return self._find(client, log.newest(), version)[1].manifest

    def versions(self) -> tuple[int, ...]:
        with self._using("the versions cannot be listed") as (_, log):
            return tuple(sorted(log.newest().published))

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`.

        Versions being read stay in memory until a later call.
        """
        if newest < 1:
            raise WeightsError(f"retain must keep at least the newest version, not {newest}")
        surplus: tuple[int, ...] = ()

        def without_surplus(now: Index) -> Index:
            nonlocal surplus
            surplus = tuple(v for v in sorted(now.published)[:-newest] if v not in keep)
            left = {v: name for v, name in now.published.items() if v not in surplus}
            gone = (now.published[version] for version in surplus)
            return replace(now, published=left, leaving=(*now.leaving, *gone))

        with self._using("old versions were not removed") as (client, log):
            log.change(without_surplus)
            self._collect(client, log)
        return surplus

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
                    client = MooncakeClient(self._address)
                    self._connected = client, IndexLog(client, self._run)
                yield self._connected
            except WeightsError as error:
                raise WeightsError(f"{what}: {error.message}") from error

    def _put_buckets(
        self, client: MooncakeClient, log: IndexLog, name: str, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[str, ...]:
        """Put all buckets of a version, each while the next is filled, verify that they are stored,
        and return their digests."""
        sizes, digests = list[int](), list[str]()
        put: Future[None] | None = None
        with _thread("push") as pushing:
            for part in pack(tensors, client.staging(self._bucket_bytes)):
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
        return tuple(digests)

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
                raise WeightsError(
                    f"{error.message}; keep fewer versions or give it a larger segment"
                ) from error

    def _put_manifest(self, client: MooncakeClient, name: str, packed: Packed) -> None:
        manifest = encode_packed(packed)
        client.put(self._manifest(name), manifest)
        client.check_stored(self._manifest(name), len(manifest))

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
        try:
            name, there = self._find(client, index, made.version)
        except WeightsError:
            return False
        if there.manifest.checksum != made.checksum:
            raise WeightsError(
                "it was published with other tensors; a version is never replaced, "
                "publish under the next number"
            )
        return all(client.existing(self._keys(name)))

    def _find(self, client: MooncakeClient, index: Index, version: int) -> tuple[str, Packed]:
        """Return the name and the metadata of a version in the index."""
        name = index.published.get(version)
        if name is None:
            there = ", ".join(map(str, sorted(index.published))) or "none"
            raise WeightsError(
                f"no weights of version {version} of {self._run} at {self._address}; there: {there}"
            )
        return name, decode_packed(client.get(self._manifest(name)))

    def _keys(self, name: str) -> list[str]:
        count = int(name.rpartition("-")[2])
        return [self._manifest(name), *(self._bucket(name, number) for number in range(count))]

    def _manifest(self, name: str) -> str:
        return f"{self._run}/{name}/manifest"

    def _bucket(self, name: str, number: int) -> str:
        return f"{self._run}/{name}/{number:05d}"


def _thread(what: str) -> ThreadPoolExecutor:
    """Create a pool of one thread, joined when its context ends."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"weights-{what}")


def _with_published(index: Index, version: int, name: str) -> Index:
    """Return the index with a version added; a damaged earlier attempt is to be collected."""
    if name not in index.leaving:
        raise WeightsError("its keys were lost or collected meanwhile; publish it again")
    damaged = [index.published[version]] if version in index.published else []
    leaving = (*index.without([name]).leaving, *damaged)
    return replace(index, published={**index.published, version: name}, leaving=leaving)
