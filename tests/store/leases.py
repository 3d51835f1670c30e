"""The lease of a run, as its tests look at it."""

from dataclasses import replace

from rollart_flow.store import read_info
from rollart_flow.store.info import write_info
from rollart_flow.store.lease import Lease, lease_file
from rollart_flow.store.lease_file import LeaseState


def state(run: str) -> LeaseState:
    """The state of a lease that exists."""
    there = lease_file(run).look()
    assert there is not None
    return there


def driving(run: str) -> None:
    """Let `run.json` name the holder of the lease, as a driver does."""
    there = state(run)
    write_info(run, replace(read_info(run), owner=there.tenure.owner, term=there.tenure.term))


def taken(run: str, *, take_over: bool = False) -> int:
    """Term of a lease that is taken and given back."""
    with Lease(run, take_over=take_over) as mine:
        return mine.tenure.term
