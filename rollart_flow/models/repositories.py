"""The folder of a model: a local one, or a repository's in the cache of huggingface_hub.

The invariant: a repository whose files are in the cache is read without the network, so that a run
that is resumed finds the files that it began with. This module imports no torch.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
"""Files of a repository that a policy may need; weights with pickles are never read."""


_STAND_IN: ContextVar[Path | None] = ContextVar("stand_in", default=None)


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """Let a folder stand for each model that is not on this machine.

    A stored run has its model with it, so that it can be read where its pipeline's is not.
    """
    token = _STAND_IN.set(folder if (folder / "config.json").is_file() else None)
    try:
        yield
    finally:
        _STAND_IN.reset(token)


_RECORDED: ContextVar[tuple[str | None, str]] = ContextVar("recorded", default=(None, ""))


@contextmanager
def at_recorded_commit(path: str | None, revision: str) -> Iterator[None]:
    """Let a revision of a repository be the commit that it was when a run was made with it.

    Args:
        path: folder of the run's model; if it is none of the cache, nothing changes.
        revision: the revision that the run was made with.
    """
    token = _RECORDED.set((path, revision))
    try:
        yield
    finally:
        _RECORDED.reset(token)


def _recorded_commit(repository: str, revision: str) -> str:
    """Return the commit that a run recorded for this repository and revision, or the revision."""
    path, recorded = _RECORDED.get()
    place = Path(path or "").parts[-3:]
    named = ("models--" + repository.replace("/", "--"), "snapshots")
    return place[2] if place[:2] == named and revision == recorded else revision


def holds_model(path: str | Path) -> bool:
    """Return whether a path is the local folder of a model."""
    return (Path(path).expanduser() / "config.json").is_file()


def model_folder(path: str | Path, revision: str) -> Path:
    """Return the local folder of a model, after a download into the cache if need be.

    Args:
        path: a folder, or the id of a repository of the Hugging Face Hub such as "org/name".
        revision: branch, tag or commit of the repository; a run that is resumed has the commit
            that it recorded (`at_recorded_commit`).

    Raises:
        SettingsError: there is no such model, or it is not in the cache and cannot be downloaded.
    """
    folder = Path(path).expanduser()
    if holds_model(folder):
        return folder.resolve()
    revision = _recorded_commit(str(path), revision)
    if (stand_in := _STAND_IN.get()) is not None:
        cached = _cached(str(path), revision) if _REPOSITORY.fullmatch(str(path)) else None
        return cached or stand_in
    if folder.exists() or not _REPOSITORY.fullmatch(str(path)):
        raise SettingsError(
            f"policy: no config.json in {str(folder)!r}; "
            "give the local folder of a Hugging Face model, or the id of a repository"
        )
    return _cached(str(path), revision) or _downloaded(str(path), revision)


def _cached(repository: str, revision: str) -> Path | None:
    """Return the folder of a repository whose config and weights are in the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return folder if whole else None


def _downloaded(repository: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=list(_FILES))
    except (OSError, ValueError) as error:  # those of the network and of the Hub are OSErrors
        raise SettingsError(
            f"policy: {repository!r} is neither a folder nor whole in the cache of "
            f"huggingface_hub, and cannot be downloaded: {_reason(error, revision)}; where there "
            f"is a network, call: hf download {repository} --revision {revision}"
        ) from error
    return Path(folder)


def _reason(error: Exception, revision: str) -> str:
    """Return why a download failed; texts of huggingface_hub have several lines each."""
    from huggingface_hub import constants, errors

    offline = constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled)
    if offline:
        return "HF_HUB_OFFLINE is set"
    reasons = (
        (errors.LocalEntryNotFoundError, f"{constants.ENDPOINT} cannot be reached"),
        (errors.GatedRepoError, "its terms are to be accepted there first, and a token given"),
        (errors.RepositoryNotFoundError, "there is no such repository, or it is private"),
        (errors.RevisionNotFoundError, f"it has no revision {revision!r}"),
        (ConnectionError, f"{constants.ENDPOINT} cannot be reached"),
    )
    for kind, reason in reasons:
        if isinstance(error, kind):
            return reason
    if isinstance(error, errors.HfHubHTTPError):
        return f"{constants.ENDPOINT} answers with status {error.response.status_code}"
    return getattr(error, "strerror", None) or one_line(error)
