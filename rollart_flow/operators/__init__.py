"""tasks, rollout, reward, buffer, train and evaluate as Ray Data operators."""

import os

# Ray Data reads this when it is imported. By default a block's metadata is fetched by a thread and
# the block moves on a turn of the scheduler later, 100 ms at least: between two operators that hold
# one small block at a time, that is a third of the way of a trajectory to its commit.
os.environ.setdefault("RAY_DATA_METADATA_PREFETCH_ON_THREAD", "0")
