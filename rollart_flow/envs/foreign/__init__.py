"""Environments of other projects: behind an address, or in a virtual environment of their own."""
