"""The lease of a run in S3: one object, replaced by conditional puts.

Of several processes that put at once, the server accepts one. Ages are measured by the server's
clock. A put whose answer was lost is refused when it is tried again; the token in the object says
that it took place (`lease.Lease`).
"""

import json
from collections.abc import Mapping
from typing import Any

from rollart_flow.retries import RetryPolicy
from rollart_flow.store.lease_file import LeaseFile, LeaseState, state
from rollart_flow.store.s3.blobs import S3Blobs

_POLICY = RetryPolicy(limit_s=10.0)
"""The holder of a lease renews it again and again, and has to end soon."""
_LEASE, _INFO = "lease.json", "run.json"


class S3LeaseFile(LeaseFile):
    """The object of the lease of a run.

    Args:
        run: address of the run.
    """

    def __init__(self, run: str) -> None:
        self._blobs = S3Blobs(run, _POLICY)

    def look(self) -> LeaseState | None:
        there = self._blobs.look(_LEASE)
        return (
            None if there is None else state(json.loads(there.data), there.age_s, there.tag, None)
        )

    def claim(self, said: Mapping[str, Any], after: LeaseState | None) -> str | None:
        data = json.dumps(said).encode()
        if after is None:
            return self._blobs.claim(_LEASE, data)
        return self._blobs.swap(_LEASE, data, after.tag)

    def renew(self, said: Mapping[str, Any], tag: str) -> str | None:
        return self._blobs.swap(_LEASE, json.dumps(said).encode(), tag)

    def release(self, said: Mapping[str, Any], tag: str) -> None:
        if self.renew(said, tag) is None and (now := self.look()) and now.token == said["token"]:
            self.renew(said, now.tag)

    def age_of_run_s(self) -> float:
        there = self._blobs.look(_INFO)
        return float("inf") if there is None else there.age_s
