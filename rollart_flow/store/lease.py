"""Who may drive a run, where processes of several machines can reach it.

A run in S3 has a lease (`s3.lease`). A local one needs none: processes of one machine see in
`run.json` whether its owner lives.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollart_flow.store import files


@contextmanager
def held(run: str) -> Iterator[None]:
    """Drive a run for as long as the context lasts.

    Raises:
        RunFailedError: another process does.
        StoreError: the store does not answer.
    """
    if not files.is_remote(run):
        yield
        return
    from rollart_flow.store.s3.lease import S3Lease

    with S3Lease(run):
        yield


def is_expired(run: str) -> bool:
    """Whether a run's driver should have given a sign of life and has not; False for a local run.

    Raises:
        StoreError: the store does not answer.
    """
    if not files.is_remote(run):
        return False
    from rollart_flow.store.s3 import lease

    with files.converting(f"cannot read the lease of {run}"):
        return lease.is_expired(run)
