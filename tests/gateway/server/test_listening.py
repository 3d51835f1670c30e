"""The folder of the gateway's socket."""

import os
import stat
import tempfile
from pathlib import Path

from rollart_flow.gateway.server.listening import PrivateFolder
from rollart_flow.sandbox.images.tree import NOBODY


def test_the_user_of_boxes_alone_reaches_a_socket() -> None:
    folder = PrivateFolder()
    folder.listen().close()
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    for path, mode in ((folder.path, 0o700), (folder.path / "s", 0o600)):
        about = path.stat()
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (user, mode)
    folder.remove()
    assert not folder.path.exists()


def test_the_folder_of_a_process_that_was_killed_is_removed() -> None:
    dead = Path(tempfile.mkdtemp(prefix=f"rollart-gateway-{1 << 22}-7-"))
    living, other = PrivateFolder(), PrivateFolder()
    assert not dead.exists()
    assert living.path.exists()
    living.remove()
    other.remove()
