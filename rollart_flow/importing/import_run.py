"""A run of conversations that others had: its policy, and one row for each conversation.

Invariant: the run is complete, or it is not there; nothing stays of an import that was refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rollart_flow.errors import RunExistsError, SettingsError, StoreError
from rollart_flow.importing.chains import ChainPlace, chain_of
from rollart_flow.importing.forms import conversations_of
from rollart_flow.importing.records import BadRecordError, ImportRecord, check_files, records
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.store import RunInfo, RunStatus, RunWriter, files, new_run_uri
from rollart_flow.store.images import ImageFolder
from rollart_flow.store.info import info_uri, read_info
from rollart_flow.store.layout import policy_uri
from rollart_flow.store.lease import Lease, check_free
from rollart_flow.types import Event, EventKind, Trajectory
from rollart_flow.weights.folder_store import local_path, made

PIPELINE = "import"
"""Name of the pipeline of such a run, which has none."""
DOMAIN = "imported"
_AT_ONCE = 256
"""Rows that are committed together."""
_SHOWN = 20
"""Bad records whose places are kept."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An imported run."""

    run: str
    uri: str
    conversations: int
    """Rows of the run."""
    groups: int
    tokens: int
    """Tokens that the assistant said and that are trained on."""
    skipped: int
    """Records that are no conversations."""
    errors: tuple[str, ...]
    """Places of the first of them, and what is wrong."""


def import_conversations(
    paths: Sequence[str | Path],
    *,
    policy: str,
    name: str,
    form: str | None = None,
    domain: str = DOMAIN,
    skip_bad: bool = False,
    store: str | None = None,
    context: int | None = None,
) -> ImportResult:
    """Make a run of conversations of others.

    Args:
        paths: files of JSONL or Parquet; see `importing.forms` for what a record may be.
        policy: a folder of Hugging Face, a repository, the name of a run, or "tiny": its chat
            template renders the conversations, and it is version 0 of the run.
        name: name of the new run.
        form: "jsonl" or "parquet"; by default what the names of the files say.
        domain: domain of conversations that name none.
        skip_bad: whether records that are no conversations are counted and left out.
        store: store of the run; $ROLLART_STORE or ./runs by default.
        context: most tokens of a conversation; those of the policy by default.

    Raises:
        SettingsError: a record is no conversation (the message names file and line), a file cannot
            be read, or the policy cannot be used.
        RunExistsError: the name is taken.
        StoreError: the store cannot be written.
    """
    from rollart_flow.runner.gateway.settings import GatewaySettings, found_policy
    from rollart_flow.runner.setup import publish_start  # its package loads torch

    given = [Path(path).expanduser() for path in paths]
    check_files(given, form)
    settings = GatewaySettings(policy=policy, context=context, store=store)
    with found_policy(settings) as found, _new_run(name, found, store) as writer:
        uri = writer.uri
        with made(policy_uri(uri)) as folder:
            materialize(found, folder)
        importer = _Importer(
            writer, load_codec(local_path(policy_uri(uri))), found.max_context, domain, skip_bad
        )
        for record in records(given, form):
            importer.add(record)
        importer.commit()
        if not importer.rows:
            raise SettingsError(f"{', '.join(map(str, given))}: there is no conversation in it")
        publish_start(uri, writer, 0, checkpoint=False)
    return importer.result(name)


@contextmanager
def _new_run(name: str, policy: Policy, store: str | None) -> Iterator[RunWriter]:
    """Provide the writer of a new run, which is removed if the import fails.

    Nothing reads the run before its status says that it has ended, so that an import that was
    killed leaves nothing that is half readable.
    """
    uri = new_run_uri(name, store)
    _remove_cut_off(uri)
    described = {"policy": asdict(policy), "nodes": {PIPELINE: {"kind": PIPELINE}}}
    info = RunInfo(name, PIPELINE, seed=0, settings=described, status=RunStatus.IMPORTING)
    try:
        writer = RunWriter.create(uri, info)
    except RunExistsError as error:
        said = f"there is a run at {uri} already; choose another --name"
        raise RunExistsError(said) from error
    try:
        with Lease(uri):
            started = Event(EventKind.RUN, name, detail={"pipeline": PIPELINE})
            writer.commit("events", events_table([(datetime.now(UTC), started)]))
            yield writer
            writer.close(RunStatus.FINISHED)
    except BaseException:
        with suppress(StoreError):
            _remove(uri)
        raise


def _remove_cut_off(uri: str) -> None:
    """Remove what an import that was killed has left at an address.

    Raises:
        RunFailedError: a process is importing this run.
    """
    if files.read(info_uri(uri)) is None:
        return
    left = read_info(uri)
    if left.status is RunStatus.IMPORTING:
        check_free(uri, left.owner)
        with Lease(uri):
            if read_info(uri).owner == left.owner:  # or another import has begun meanwhile
                _remove(uri)


def _remove(uri: str) -> None:
    """Remove a run; its `run.json`, which says that nobody reads it, goes last."""
    _, info = files.split(info_uri(uri))
    files.remove_all(uri, [name for name in files.names(uri) if name != info])
    files.clear(uri)


class _Importer:
    """Adds records to a run."""

    def __init__(
        self, writer: RunWriter, codec: TextCodec, context: int, domain: str, skip_bad: bool
    ) -> None:
        self._writer, self._codec, self._context = writer, codec, context
        self._domain, self._skip_bad = domain, skip_bad
        self._images = ImageFolder(writer.uri)
        self._waiting: list[Trajectory] = []
        self._groups: dict[str, int] = {}
        """Rows of each group."""
        self._tokens = self._skipped = self._records = self.rows = 0
        self._errors: list[str] = []

    def add(self, record: ImportRecord) -> None:
        """Add the conversations of a record: all, or none if one cannot be.

        Raises:
            SettingsError: it is no conversation, and such records are not skipped.
        """
        self._records += 1
        try:
            if record.error is not None:
                raise BadRecordError(record.error)
            found = self._trajectories(record)
        except BadRecordError as error:
            said = f"{record.place}: {error}"
            if not self._skip_bad:
                raise SettingsError(f"{said} (--skip-bad leaves such out)") from error
            self._skipped += 1
            if len(self._errors) < _SHOWN:
                self._errors.append(said)
            return
        for each in found:
            self._groups[each.group_id] = each.attempt + 1
            self._tokens += sum(each.action_mask)
        self._waiting += found
        self.rows += len(found)
        if len(self._waiting) >= _AT_ONCE:
            self.commit()

    def commit(self) -> None:
        """Commit the rows that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._images.put(image for each in waiting for image in each.images or ())
        self._writer.commit("trajectories", trajectories_table(waiting))
        if self._writer.maintenance_due:
            self._writer.maintain()

    def result(self, name: str) -> ImportResult:
        """Return the counts."""
        return ImportResult(
            name, self._writer.uri, self.rows, len(self._groups), self._tokens, self._skipped,
            tuple(self._errors),
        )  # fmt: skip

    def _trajectories(self, record: ImportRecord) -> list[Trajectory]:
        made: list[Trajectory] = []
        for index, each in enumerate(conversations_of(record.value, record.file.parent)):
            group = each.group or f"record{self._records:08d}"
            attempt = self._groups.get(group, 0) + index
            place = ChainPlace(
                f"record{self._records:08d}-{index:02d}", group, attempt,
                each.domain or self._domain, record,
            )  # fmt: skip
            made.append(chain_of(each, self._codec, place, self._context))
        return made
