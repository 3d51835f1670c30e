"""Whether a server keeps the promise that every commit rests on: conditional puts.

Two writers who commit the same version of a table put the same key. Where the server ignores the
condition, one commit silently replaces the other; so such a server is refused before anything is
written to it.
"""

from functools import lru_cache
from uuid import uuid4

from rollart_flow.store.s3.access import Bucket, bucket
from rollart_flow.store.s3.blobs import S3Blobs


def check_conditional_puts(uri: str) -> None:
    """Ask the server of a store, once per process, by putting and removing one small object.

    Args:
        uri: `s3://bucket/prefix` of the store.

    Raises:
        OSError: it ignores conditions, or cannot be written.
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
