"""The lease of a run in S3: what every lease promises, and answers that are lost."""

import json
import threading
from dataclasses import replace
from queue import SimpleQueue

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store import Owner, lease
from rollart_flow.store.info import write_info
from rollart_flow.store.lease import Lease
from rollart_flow.store.s3.blobs import S3Blobs
from tests.runs import info
from tests.store.lease_conformance import ELSEWHERE, LeaseConformance, said_by
from tests.store.leases import state


@pytest.fixture
def run(remote: str) -> str:
    """A run that a process of another machine has made."""
    write_info(f"{remote}/a", replace(info(), owner=ELSEWHERE), new=True)
    return f"{remote}/a"


class TestLeaseInS3(LeaseConformance):
    """A lease in a bucket."""

    @pytest.fixture
    def run(self, remote: str) -> str:
        write_info(f"{remote}/a", replace(info(), owner=ELSEWHERE), new=True)
        return f"{remote}/a"

    def taken_by(self, run: str, owner: Owner) -> None:
        S3Blobs(run).write("lease.json", json.dumps(said_by(owner, 7)).encode())


def test_a_renewal_whose_answer_was_lost_is_known_to_be_ones_own(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = S3Blobs.swap
    put, lost_one, renewed = [], threading.Event(), threading.Event()

    def unanswered(self: S3Blobs, name: str, data: bytes, tag: str) -> str | None:
        new = swap(self, name, data, tag)
        put.append(new)
        if len(put) == 1:
            lost_one.set()
            raise OSError("the connection broke before the answer came")
        if new is not None:
            renewed.set()
        return new

    monkeypatch.setattr(lease, "RENEW_S", 0.05)
    monkeypatch.setattr(S3Blobs, "swap", unanswered)
    told: SimpleQueue[str] = SimpleQueue()
    with Lease(run) as mine:
        mine.on_lost(told.put)
        assert lost_one.wait(60)
        assert renewed.wait(60), "the lease is renewed after it"
    assert put[1] is None, "the second renewal still had the tag before the first"
    assert told.empty()
    assert state(run).released


def test_no_lease_is_taken_where_the_bucket_is_missing(remote: str) -> None:
    with pytest.raises(StoreError, match=r"^cannot take the lease of s3://nowhere/a: there is no"):
        Lease("s3://nowhere/a").__enter__()
