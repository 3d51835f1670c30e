"""Trackers: where the figures, samples and spans of a run are shown, beside its tables."""
