"""Blobs below a prefix of an S3 bucket.

A put of S3 is atomic. An exclusive put and a replacement (`swap`) are conditional puts: the server
accepts one of several concurrent ones. Requests are repeated while the server is away, although an
earlier try may have succeeded whose answer was lost; the stored bytes tell, since every writer of a
conditional put writes different bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from rollart_flow.retries import RetryPolicy
from rollart_flow.store.away import repeated
from rollart_flow.store.blobs import Blobs
from rollart_flow.store.s3.access import Bucket, bucket
from rollart_flow.store.s3.failures import as_os_errors, is_absent, is_busy, is_lost

T = TypeVar("T")
_REMOVED_AT_ONCE = 1000
"""Most keys in one delete request."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """Content of a blob at one moment."""

    data: bytes
    tag: str
    """ETag of the content, for `S3Blobs.swap`."""
    age_s: float
    """Time since the blob was written, by the server's clock."""


class S3Blobs(Blobs):
    """Objects of a bucket whose keys begin with a prefix.

    Args:
        uri: `s3://bucket/prefix`.
        policy: for how long a request is repeated; by default as long as the environment says.

    Raises:
        OSError: the bucket does not answer.
    """

    def __init__(self, uri: str, policy: RetryPolicy | None = None) -> None:
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        self._policy = policy
        self._bucket: Bucket = bucket(name)
        self._prefix = f"{prefix}/" if prefix else ""

    def read(self, name: str) -> bytes | None:
        found = self.look(name)
        return None if found is None else found.data

    def look(self, name: str) -> Tagged | None:
        """Current content of a blob, or None if there is no such blob."""
        return self._repeated("read", name, lambda: self._look(name))

    def _look(self, name: str) -> Tagged | None:
        try:
            answer = self._client.get_object(**self._at(name))
        except ClientError as error:
            if is_absent(error):
                return None
            raise
        return Tagged(answer["Body"].read(), answer["ETag"], _age_s(answer))

    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        return self._put(name, bytes(data), condition) is not None

    def claim(self, name: str, data: bytes) -> str | None:
        """Write a new blob; returns its tag, or None if the blob exists."""
        return self._put(name, data, {"IfNoneMatch": "*"})

    def swap(self, name: str, data: bytes, tag: str) -> str | None:
        """Replace a blob that still has `tag`; returns its new tag, or None if it has another."""
        return self._put(name, data, {"IfMatch": tag})

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> str | None:
        attempts = 0

        def put() -> str | None:
            nonlocal attempts
            attempts += 1
            try:
                answer = self._client.put_object(**self._at(name), Body=data, **condition)
            except ClientError as error:
                if not condition or not (is_lost(error) or is_absent(error)):
                    raise
                earlier = self._look(name) if attempts > 1 else None
                return earlier.tag if earlier is not None and earlier.data == data else None
            return str(answer["ETag"])

        return self._repeated("write", name, put)

    def write_new(self, name: str, data: memoryview) -> None:
        self.write(name, data)

    def sync(self, names: Sequence[str]) -> None:
        """Do nothing: an object that can be read is stored for good."""

    def remove(self, name: str) -> None:
        self._repeated("remove", name, lambda: self._client.delete_object(**self._at(name)))

    def folders(self) -> list[str]:
        start = len(self._prefix)
        pages = self._pages(Delimiter="/")
        found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
        return sorted(prefix[start:-1] for prefix in found)

    def names(self) -> list[str]:
        start = len(self._prefix)
        keys = [each["Key"] for page in self._pages() for each in page.get("Contents", ())]
        return sorted(key[start:] for key in keys)

    def clear(self) -> None:
        self.remove_all(self.names())

    def remove_all(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _REMOVED_AT_ONCE):
            chunk = names[first : first + _REMOVED_AT_ONCE]
            keys = [{"Key": self._prefix + name} for name in chunk]
            self._repeated("remove", chunk[0], partial(self._delete, keys))

    def _delete(self, keys: list[dict[str, str]]) -> None:
        answer = self._client.delete_objects(
            Bucket=self._bucket.name, Delete={"Objects": keys, "Quiet": True}
        )
        for failed in answer.get("Errors", ()):
            kind = ConnectionError if is_busy(failed.get("Code", "")) else OSError
            raise kind(f"{failed['Key']} was not removed: {failed.get('Message', 'no reason')}")

    def download(self, name: str, path: Path) -> None:
        """Read a blob into a local file; large blobs in concurrent parts."""
        bucket, key = self._bucket.name, self._prefix + name
        self._repeated("read", name, lambda: self._client.download_file(bucket, key, str(path)))

    @property
    def _client(self) -> Any:
        return self._bucket.client

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket.name, "Key": self._prefix + name}

    def _pages(self, **how: str) -> list[dict[str, Any]]:
        listing = self._client.get_paginator("list_objects_v2")
        where = {"Bucket": self._bucket.name, "Prefix": self._prefix}
        return self._repeated("list", "", lambda: list(listing.paginate(**where, **how)))

    def _repeated(self, doing: str, name: str, call: Callable[[], T]) -> T:
        """Return the result of a request, which is repeated while the server is away.

        Raises:
            ConnectionError: the server was away for too long.
            OSError: another failure.
        """

        def asked() -> T:
            with as_os_errors(self._bucket.endpoint):
                return call()

        return repeated(
            f"{doing} s3://{self._bucket.name}/{self._prefix}{name}", asked, self._policy
        )


def _age_s(answer: dict[str, Any]) -> float:
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    passed = parsedate_to_datetime(headers["date"]) - answer["LastModified"]
    return max(0.0, float(passed.total_seconds()))


def check_conditional_puts(uri: str) -> None:
    """Check, once per process, that the server of a store honors conditional puts.

    Two writers that commit the same version of a table put the same key. A server that ignores the
    condition would silently replace one commit by the other, so it is refused before a run is
    written to it. The check puts and removes one small object.

    Args:
        uri: `s3://bucket/prefix` of the store.

    Raises:
        OSError: the server ignores conditions, or cannot be written.
    """
    _check(bucket(uri.removeprefix("s3://").partition("/")[0]), uri)


@lru_cache(maxsize=16)
def _check(asked: Bucket, uri: str) -> None:
    blobs, name = S3Blobs(uri), f".probe-{uuid4().hex}"
    blobs.write(name, b"first")
    try:
        overwritten = blobs.claim(name, b"second") or blobs.swap(name, b"third", '"another"')
    finally:
        blobs.remove(name)
    if overwritten:
        raise OSError(
            f"{asked.endpoint} ignores If-None-Match or If-Match, so that writers could overwrite "
            "each other's commits; take a server with conditional puts, such as AWS S3 or MinIO"
        )
