"""Ray Data operators of a run: tasks, rollout, reward, buffer, train, and evaluate."""

import os

# Ray Data reads this variable on import. By default a thread fetches the metadata of a block, and
# the block moves on in the scheduler's next iteration, at least 100 ms later. Between two operators
# that hold one small block at a time, that is a third of a trajectory's latency to its commit.
os.environ.setdefault("RAY_DATA_METADATA_PREFETCH_ON_THREAD", "0")
