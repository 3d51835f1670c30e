"""Tar archives between the host and a box. What comes from a box is checked entry by entry.

The invariant: no entry of a box is written through a link that leads out of its folder, and no such
link is left. `tarfile` is not relied on for that: its filters came with Python 3.11.4, and can be
led out before 3.11.13 (CVE-2025-4517).
"""

import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.links import link_that_leads_out

ENTRY = "entry"
"""Name of the one top entry of an archive that comes from a box."""


def pack_file(source: Path, name: str, write_end: int) -> None:
    """Write a file or folder as an archive with one top entry to a pipe, and close it.

    A reader that goes away ends it early. Owners are left out.
    """
    with os.fdopen(write_end, "wb") as pipe:
        try:
            with tarfile.open(fileobj=pipe, mode="w|") as archive:
                archive.add(source, name, filter=_without_owner)
        except BrokenPipeError:
            _discard(pipe.fileno())


def packed_file(source: Path, name: str) -> bytes:
    """Return a file or folder as an archive with one top entry; owners are left out."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(source, name, filter=_without_owner)
    return stream.getvalue()


def unpack_archive(read_end: int, target: Path, limit: int) -> str:
    """Unpack an archive from a pipe as `unpack_entry` does, and close the pipe."""
    with os.fdopen(read_end, "rb") as pipe:
        return unpack_entry(pipe, target, limit)


def unpack_entry(stream: BinaryIO, target: Path, limit: int, name: str = ENTRY) -> str:
    """Unpack the one top entry of an archive, which has the name, as `target`.

    Returns why the archive cannot be accepted, and then leaves nothing behind: links that lead out
    of the entry, devices, sockets, or more than `limit` bytes of files, or a target that exists.
    """
    from rollart_flow.sandbox.images.archive import unpack
    from rollart_flow.sandbox.images.tree import TreeWriter

    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".download-", dir=target.parent))
    unpacked = folder / name
    try:
        unpack(stream, TreeWriter(folder, limit, for_boxes=False))
        if not os.path.lexists(unpacked):
            return "no such file"
        if (link := link_that_leads_out(unpacked)) is not None:
            return f"the link {link[:200]!r} leads out"
        if os.path.lexists(target):
            return f"{target} exists"
        unpacked.rename(target)
    except ImageError as error:
        return str(error).removeprefix("image: ")
    except OSError as error:
        return error.strerror or str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _discard(descriptor: int) -> None:
    """Let the buffered rest of a broken pipe go nowhere, so that closing raises nothing."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
