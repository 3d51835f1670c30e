"""Scheduling of attempts: admission, groups and cancellation, with recovery after a restart."""
