"""Ids of groups, seeds of episodes, and the policy version that starts a trajectory.

All functions are pure, so that a restarted process computes the same ids and seeds.
"""

import hashlib

from rollart_flow.errors import RunFailedError
from rollart_flow.types import Sample


def env_seed(*parts: object) -> int:
    """Return a 31-bit seed from the parts of an episode's name, equal in every process."""
    name = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def group_name(cursor: int) -> str:
    """Return the id of the group admitted at a task cursor, the same after a restart."""
    return f"g{cursor:08d}"


def group_cursor(group_id: str) -> int:
    """Return the task cursor at which a group was admitted."""
    return int(group_id.removeprefix("g"))


def start_version(sample: Sample) -> int:
    """Return the policy version that started a trainable trajectory."""
    if sample.policy_version_start is None:
        raise RunFailedError(f"trajectory {sample.trajectory_id} has no policy version")
    return sample.policy_version_start
