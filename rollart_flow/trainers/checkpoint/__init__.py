"""Checkpoints and published versions of a trainer."""
