"""Buffer of committed trajectories, from which batches are formed."""
