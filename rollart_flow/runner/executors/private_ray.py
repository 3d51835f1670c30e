"""Settings with which a local Ray is reachable from this machine alone, and by this user alone.

Ray listens on all interfaces by default, and stores its token where other users of the machine may
read it.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private import ray_constants

_MODE = "RAY_AUTH_MODE"
_OWN_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_JOINABLE = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
"""With "0", all processes of Ray listen on loopback, as they do on macOS and Windows."""


@contextmanager
def private_ray() -> Iterator[None]:
    """Let a Ray that starts in the context listen on loopback and require a token.

    Ray itself turns the token on, unless the environment names a mode. A token that the environment
    names is used as it is.
    """
    if os.environ.get(_MODE, "token") == "token" and not any(map(os.environ.get, _OWN_TOKENS)):
        _keep_token_private(Path.home() / ".ray" / "auth_token")
    before = os.environ.get(_JOINABLE)
    joins = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_JOINABLE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = joins
        if before is None:
            del os.environ[_JOINABLE]
        else:
            os.environ[_JOINABLE] = before


def _keep_token_private(path: Path) -> None:
    """Create Ray's token file, or take the permissions of other users away from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        return
    with os.fdopen(handle, "w") as stream:
        stream.write(secrets.token_hex(32))
