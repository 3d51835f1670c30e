"""Loaded by every Python process that starts with this folder in PYTHONPATH."""

from tests.chaos.hooks.wiretap import install

install()
