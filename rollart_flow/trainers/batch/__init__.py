"""From a stored batch to micro-batches."""
