"""A box of bubblewrap, whose root can become an image."""

import asyncio
import os
from typing import BinaryIO, cast

from rollart_flow.sandbox.agent.box import AgentSandbox
from rollart_flow.sandbox.images.archive import unpack
from rollart_flow.sandbox.images.tree import TreeWriter


class BubblewrapSandbox(AgentSandbox):
    """A box as `AgentSandbox`, with its whole root as a tree."""

    async def export(self, writer: TreeWriter) -> None:
        """Write the root of the box to a tree, without `/tmp`, `/run` and what is mounted into it.

        Raises:
            ImageError: it is larger than the tree may be, or has a pipe or a socket.
            SandboxFileError: a file cannot be read in the box.
            SandboxError: the box has ended.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        unpacking = asyncio.create_task(asyncio.to_thread(_unpack, read_end, writer))
        try:
            await self._archive("pack", "/", ".", write_end, closes=True)
        finally:
            await unpacking


def _unpack(read_end: int, writer: TreeWriter) -> None:
    with os.fdopen(read_end, "rb") as pipe:
        unpack(cast("BinaryIO", pipe), writer)
