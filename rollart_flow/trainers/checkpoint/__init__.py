"""What a trainer writes: checkpoints, and the versions it publishes."""
