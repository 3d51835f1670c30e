"""The stored runs that a new run learns from: found, pinned and checked before it begins."""

from rollart_flow.errors import SettingsError
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.operators.stored_rows import StoredRows
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.stored import SELF
from rollart_flow.runner.settings import stored_sources
from rollart_flow.store import Parent, Run
from rollart_flow.store.layout import policy_uri, resolve
from rollart_flow.store.pins import PinnedRun, pin, recorded_pins
from rollart_flow.weights.folder_store import local_path

_TOKENIZER = "tokenizer.json"


def pinned_runs(
    pipeline: Pipeline, store: str | None, parent: Parent | None
) -> dict[str, tuple[PinnedRun, ...]]:
    """Pin the runs of a pipeline's `stored` nodes as they are now, and return them by node.

    A fork draws from what its parent drew from, as far as it names the same runs.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: the rows do not fill a batch.
        StoreError: a run cannot be read.
    """
    before = {} if parent is None else recorded_pins(Run(parent.uri).snapshot())
    known = {each.run: each for pins in before.values() for each in pins}
    pins = {}
    for node in pipeline.stored:
        names = [name for name in node.runs if name != SELF]
        found = (known.get(resolve(name, store)) or pin(name, store) for name in names)
        pins[node.name] = tuple(found)
    for source in stored_sources(pipeline, pins):
        StoredRows("", source).check()
    return pins


def check_sources(pipeline: Pipeline, uri: str) -> None:
    """Refuse stored runs whose token ids are not those of a run's own tokenizer.

    Args:
        pipeline: the pipeline of the run.
        uri: address of the run, whose policy folder is complete.

    Raises:
        SettingsError: names the run whose tokenizer is another one.
    """
    if not pipeline.stored:
        return
    own = tokenizer_files(local_path(policy_uri(uri)))[_TOKENIZER]
    for node, pins in recorded_pins(Run(uri).snapshot()).items():
        for each in pins:
            theirs = tokenizer_files(local_path(policy_uri(each.run)))[_TOKENIZER]
            if theirs != own:
                raise SettingsError(
                    f"{node}: the tokenizer of the run at {each.run} is not that of the policy, so "
                    "its token ids mean something else; train the policy that made the run, or one "
                    "with its tokenizer"
                )
