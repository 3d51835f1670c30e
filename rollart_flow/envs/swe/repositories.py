"""The files of a repository at one commit, from a folder of repositories and archives on disk.

Only the files of the commit are read: no history, no attribute and no hook of the repository has
any effect. The folder belongs to the user, not to an agent.
"""

import subprocess
from pathlib import Path

from rollart_flow.envs.swe.file_tree import TreeFile, is_kept_path, read_source
from rollart_flow.errors import SettingsError

_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_GIT_S = 300.0


def files_at(folder: Path, repository: str, commit: str) -> dict[str, TreeFile]:
    """Return the files of a commit.

    Args:
        folder: has `OWNER__NAME-COMMIT` as a folder or an archive, or the git repository
            `OWNER__NAME` or `OWNER__NAME.git` with the commit.
        repository: such as "owner/name".
        commit: its full name, or as much of it as the folder's entries have.

    Raises:
        SettingsError: neither is there, or git does not know the commit.
    """
    name = repository.replace("/", "__")
    for suffix in ("", *_SUFFIXES):
        path = folder / f"{name}-{commit}{suffix}"
        if path.exists():
            return read_source(path).files
    for path in (folder / name, folder / f"{name}.git"):
        if path.is_dir():
            return _at_commit(path, commit)
    raise SettingsError(
        f"{folder} has no files of {repository}: add the archive {name}-{commit}.tar.gz or the git "
        f"repository {name}"
    )


def _at_commit(repository: Path, commit: str) -> dict[str, TreeFile]:
    if not commit.isalnum():
        raise SettingsError(f"{commit!r} is no name of a commit")
    listing = _git(repository, ["ls-tree", "-r", "-z", "--full-tree", commit])
    entries = []
    for line in listing.decode(errors="surrogateescape").split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, kind, digest = about.split()
        if kind == "blob" and mode in ("100644", "100755") and is_kept_path(path):
            entries.append((path, mode == "100755", digest))
    asked = "".join(f"{digest}\n" for _, _, digest in entries).encode()
    answers = _git(repository, ["cat-file", "--batch"], asked)
    found, place = {}, 0
    for path, executable, _ in entries:
        end = answers.index(b"\n", place)
        size = int(answers[place:end].split()[2])
        found[path] = TreeFile(answers[end + 1 : end + 1 + size], executable)
        place = end + size + 2
    return found


def _git(repository: Path, arguments: list[str], given: bytes = b"") -> bytes:
    command = ["git", "-c", "safe.directory=*", "-C", str(repository), "--no-replace-objects"]
    try:
        done = subprocess.run(
            [*command, *arguments], input=given, capture_output=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"{repository}: git cannot be run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SettingsError(f"{repository}: {lines[-1] if lines else 'git failed'}")
    return done.stdout
