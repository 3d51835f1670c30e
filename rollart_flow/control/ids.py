"""Names of groups, seeds of episodes, and the version that a trajectory starts from.

All are pure functions: a process that restarts finds the same names and seeds again.
"""

import hashlib

from rollart_flow.errors import RunFailedError
from rollart_flow.types import Sample


def env_seed(*parts: object) -> int:
    """A seed of 31 bits from what names an episode; equal for equal names in every process."""
    name = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


def group_name(cursor: int) -> str:
    """Id of the group that is admitted at a cursor of the tasks: the same after a restart."""
    return f"g{cursor:08d}"


def group_cursor(group_id: str) -> int:
    """The cursor that a group was admitted at."""
    return int(group_id.removeprefix("g"))


def start_version(sample: Sample) -> int:
    """Policy version that started a trainable trajectory."""
    if sample.policy_version_start is None:
        raise RunFailedError(f"trajectory {sample.trajectory_id} has no policy version")
    return sample.policy_version_start
