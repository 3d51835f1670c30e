"""Conversion of a stored batch to micro-batches."""
