"""The control plane: plain asyncio classes that talk through the ports of `control.protocols`.

No Ray, no torch, no I/O, no thread; time only through the running loop, so that the same code runs
in actors, in one process, and under virtual time.
"""
