"""The control plane: plain asyncio classes that communicate through `control.protocols`.

The package uses no Ray, torch, I/O or threads, and takes the time only from the running loop, so
that the same code runs in actors, in one process, and under virtual time.
"""
