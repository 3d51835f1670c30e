"""The shell's face: the command `rollart`."""

from rollart_flow.cli.app import main

__all__ = ["main"]
