"""Schedules: the order of a training step's phases, the staleness bound, and the controller."""
