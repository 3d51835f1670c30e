"""The folder layout of a run, and the run that a path, URI or name refers to.

    <store>/<name>/run.json         information about the run
                   pipeline.py      source of the pipeline that made it
                   tables/<table>/  one Delta table for each of `schema.TABLES`
                   weights/         published policy versions
                   checkpoints/     the trainer's checkpoints
                   policy/          the initial policy, a Hugging Face folder
                   adapter/         the LoRA adapter that it is evaluated with, if there is one
                   teacher/         the other policy that it learns from, if there is one
                   logs/            what its processes printed and logged (`store.logs`)
                   images/          images that environments showed, <SHA-256>.png, if there are any
                   replays/         logprobs that `rollart replay --logprobs` computed
                                    (`store.replays`), if somebody asked for them
                   logprobs/        logprobs that the trainer computed, one file for each step
                                    (`store.step_logprobs`), if `train` keeps them
            admissions/             the Delta table of checks of tasks (`store.admissions`)

A run needs nothing outside its folder, so the folder can be copied or moved.
"""

import difflib
import os

from rollart_flow.errors import RunNotFoundError, SettingsError, StoreError
from rollart_flow.store import files
from rollart_flow.store.info import RunInfo, info_uri, read_info
from rollart_flow.text import counted

STORE_VARIABLE = "ROLLART_STORE"
DEFAULT_STORE = "runs"
ADMISSIONS = "admissions"
"""Name of the table of checks of tasks in a store, which no run has."""


def store_uri(store: str | os.PathLike[str] | None = None) -> str:
    """Address of the store: the given one, else $ROLLART_STORE, else ./runs."""
    return files.normalize(store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def table_uri(run: str, table: str) -> str:
    """Address of one Delta table of a run."""
    return files.join(run, "tables", table)


def log_entry(version: int) -> str:
    """Path of the log entry of a version within the folder of its table."""
    return f"_delta_log/{version:020d}.json"


def admissions_uri(store: str | os.PathLike[str] | None = None) -> str:
    """Address of the table of checks of tasks in a store."""
    return files.join(store_uri(store), ADMISSIONS)


def weights_uri(run: str) -> str:
    """Address of the folder of published weights."""
    return files.join(run, "weights")


def checkpoints_uri(run: str) -> str:
    """Address of the folder of the trainer's checkpoints."""
    return files.join(run, "checkpoints")


def policy_uri(run: str) -> str:
    """Address of the folder of the initial policy."""
    return files.join(run, "policy")


def adapter_uri(run: str) -> str:
    """Address of the folder of the LoRA adapter that the run evaluates with."""
    return files.join(run, "adapter")


def teacher_uri(run: str) -> str:
    """Address of the folder of the other policy that the run learns from."""
    return files.join(run, "teacher")


def images_uri(run: str) -> str:
    """Address of the folder of the images that environments showed."""
    return files.join(run, "images")


def replays_uri(run: str) -> str:
    """Address of the folder of the logprobs that replays computed again."""
    return files.join(run, "replays")


def logprobs_uri(run: str) -> str:
    """Address of the folder of the logprobs that the trainer computed in its steps."""
    return files.join(run, "logprobs")


def pipeline_uri(run: str) -> str:
    """Address of the source of the pipeline that made the run."""
    return files.join(run, "pipeline.py")


def write_pipeline(run: str, source: str) -> None:
    """Store the source of the pipeline in the folder of its run."""
    files.write(pipeline_uri(run), source.encode())


def has_pipeline(run: str) -> bool:
    """Whether a run has the source of a pipeline; one of a gateway by hand has none."""
    return files.read(pipeline_uri(run)) is not None


def read_pipeline(run: str) -> str:
    """Source of the pipeline that made the run.

    Raises:
        StoreError: the run has no stored source.
    """
    data = files.read(pipeline_uri(run))
    if data is None:
        raise StoreError(f"run at {run} has no pipeline.py")
    return data.decode()


def new_run_uri(name: str, store: str | os.PathLike[str] | None = None) -> str:
    """Address for a new run of a name.

    Raises:
        SettingsError: the name cannot be that of a folder.
    """
    if not name or "/" in name or name.startswith("."):
        raise SettingsError(f"run name {name!r}: use letters, digits, '-', '_' and inner '.'")
    if name == ADMISSIONS:
        raise SettingsError(f"run name {name!r} is that of the table of checks; choose another")
    return files.normalize(files.join(store_uri(store), name))


def resolve(run: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> str:
    """Address of the run that a path, a URI, or a name in the store refers to.

    Raises:
        RunNotFoundError: there is no such run; the message suggests similar names.
    """
    word = os.fspath(run)
    if "/" in word:
        uri = files.normalize(word)
        if files.read(info_uri(uri)) is None:
            raise RunNotFoundError(f"no run at {uri}: there is no run.json")
        return uri
    for uri in (files.join(store_uri(store), word), files.normalize(word)):
        if word and files.read(info_uri(uri)) is not None:
            return uri
    names = run_names(store)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {counted(len(names), 'run')}"
    raise RunNotFoundError(f"no run {word!r} in {store_uri(store)}; {hint}")


def run_names(store: str | os.PathLike[str] | None = None) -> list[str]:
    """Names of the runs in a store, sorted; empty if the store does not exist."""
    root = store_uri(store)
    return [
        name
        for name in files.folders(root)
        if files.read(info_uri(files.join(root, name))) is not None
    ]


def list_runs(store: str | os.PathLike[str] | None = None) -> list[tuple[str, RunInfo]]:
    """Address and information of every run in a store, oldest first.

    Raises:
        StoreError: a run's information cannot be read.
    """
    root = store_uri(store)
    runs = [(files.join(root, n), read_info(files.join(root, n))) for n in run_names(store)]
    return sorted(runs, key=lambda run: (run[1].created_at, run[0]))
