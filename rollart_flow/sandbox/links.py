"""Symbolic links of a tree whose writer is not trusted.

The invariant: a link that passes through a place outside of the tree is found, whatever its text.
"""

import errno
import os
from pathlib import Path

MOST_LINKS = 40
"""Links that one path may follow, as in Linux."""
_NO_LINK = (errno.EINVAL, errno.ENOENT, errno.ENOTDIR)
"""Errors of reading what is no link, or is not there."""


def link_that_leads_out(top: Path) -> str | None:
    """Return the path of a symbolic link of a tree that does not end within the tree, if any.

    Links are followed step by step: `realpath` makes something else of a path that is longer than
    the kernel takes.
    """
    if top.is_symlink():
        return top.name
    for folder, folders, names in os.walk(top):
        inside = Path(folder).relative_to(top)
        for name in (*folders, *names):
            if os.path.islink(os.path.join(folder, name)) and _leads_out(top, inside / name):
                return str(inside / name)
    return None


def _leads_out(top: Path, link: Path) -> bool:
    """Whether a link of a tree passes through a place outside; a missing target may be anywhere."""
    place, waiting, links = list(link.parts[:-1]), [link.name], 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            if not place:
                return True
            place.pop()
            continue
        try:
            target = os.readlink(top.joinpath(*place, part))
        except OSError as error:
            if error.errno not in _NO_LINK:
                return True
            place.append(part)
            continue
        links += 1
        if links > MOST_LINKS or target.startswith("/"):
            return True
        waiting += [name for name in reversed(target.split("/")) if name not in ("", ".")]
    return False
