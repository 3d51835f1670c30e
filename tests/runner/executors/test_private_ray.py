"""A local Ray listens on loopback, with a token that only its user can read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from rollart_flow.isolation.child import children_of
from rollart_flow.runner.executors.private_ray import private_ray

LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def sockets_of(pid: int) -> Iterator[str]:
    """Inodes of the sockets of a process."""
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(handle)
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return


def listening(pids: list[int]) -> set[str]:
    """Addresses, in hexadecimal, that processes listen on."""
    own = {inode for pid in pids for inode in sockets_of(pid)}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == LISTENS and line[9] in own}


@pytest.mark.usefixtures("shared_ray")
def test_every_process_of_a_local_ray_listens_on_loopback_and_asks_for_a_token() -> None:
    @ray.remote(num_cpus=0)
    def asked() -> str | None:
        return os.environ.get("RAY_AUTH_MODE")

    assert ray.get(asked.remote()) == "token"
    found = listening(descendants(os.getpid()))
    assert found
    assert found <= LOOPBACK


@pytest.mark.parametrize("readable", [True, False])
def test_the_token_is_readable_by_its_user_only(
    readable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / ".ray" / "auth_token"
    if readable:
        token.parent.mkdir()
        token.write_text("known to others")
    with private_ray():
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert len(token.read_text()) == (15 if readable else 64)
