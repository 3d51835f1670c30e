"""Sandboxes: boxes in which code that a model wrote runs, with bounded memory, disk and time."""
