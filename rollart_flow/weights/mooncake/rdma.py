"""The check whether this machine can transfer weights by RDMA."""

import os
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.weights.transport import TransferSettings

SYSTEM = Path("/sys/class")
DEVICES = Path("/dev/infiniband")


def rdma_devices() -> tuple[str, ...]:
    """Return the RDMA devices that have an active port and that this process may use."""
    found = []
    for verbs in SYSTEM.glob("infiniband_verbs/uverbs*"):
        name = (verbs / "ibdev").read_text().strip()
        ports = SYSTEM.glob(f"infiniband/{name}/ports/*/state")
        active = any("ACTIVE" in state.read_text() for state in ports)
        if active and os.access(DEVICES / verbs.name, os.R_OK | os.W_OK):
            found.append(name)
    return tuple(sorted(found))


def protocols() -> str:
    """Describe the protocols that this machine supports, in one line."""
    return f"tcp; rdma: {', '.join(rdma_devices()) or 'no active device'}"


def check_protocol(transfer: TransferSettings) -> None:
    """Reject RDMA where this machine lacks a device for it.

    Raises:
        SettingsError: there is no active device, or not each of those that are named.
    """
    if transfer.protocol != "rdma":
        return
    there = rdma_devices()
    missing = sorted(set(transfer.rdma_devices) - set(there))
    if missing or not there:
        named = f" {', '.join(missing)}" if missing else ""
        raise SettingsError(
            f"protocol='rdma': this machine has no active RDMA device{named}; "
            f"there: {', '.join(there) or 'none'}; see `rollart doctor`, or take protocol='tcp'"
        )
