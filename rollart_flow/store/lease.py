"""The lease that lets a process drive a run.

A run in S3 has a lease (`s3.lease`), since processes of several machines can reach it. A local run
needs none: `run.json` names its owner, and any process of this machine sees whether that one lives.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollart_flow.store import files


@contextmanager
def held(run: str) -> Iterator[None]:
    """Hold the lease of a run for the duration of the context.

    Raises:
        RunFailedError: another process drives the run.
        StoreError: the store does not answer.
    """
    if not files.is_remote(run):
        yield
        return
    from rollart_flow.store.s3.lease import S3Lease

    with S3Lease(run):
        yield


def is_expired(run: str) -> bool:
    """Whether the lease of a run was not renewed in time; False for a local run.

    Raises:
        StoreError: the store does not answer.
    """
    if not files.is_remote(run):
        return False
    from rollart_flow.store.s3 import lease

    with files.converting(f"cannot read the lease of {run}"):
        return lease.is_expired(run)
