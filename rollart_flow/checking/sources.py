"""The tasks to check: those of a pipeline file, of a folder of tasks, or of a domain."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rollart_flow.checking.task_checks import CheckedTask
from rollart_flow.envs.base import Domain
from rollart_flow.envs.registry import ENVIRONMENTS, domain_of_folder, named_domain
from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.isolation.child import error_line
from rollart_flow.operators.tasks import checked_task
from rollart_flow.pipeline.loading import pipeline_in, read_source
from rollart_flow.types import Split, Task

_TIMEOUT_S = 600.0
"""Limit of each call of the environment of a folder's task [s]; a pipeline has its own."""
_REPEATED = 2
"""Passes over the known tasks in which no other one appears, after which there is none."""


@dataclass(frozen=True, slots=True)
class CheckSource:
    """Domains with tasks to check, and how their environments run."""

    sources: tuple[Domain | tuple[Task, ...], ...]
    domains: tuple[Domain, ...]
    """Domains that run the tasks."""
    seed: int
    timeout_s: float
    source: Path | None
    """The pipeline file; None for a folder."""

    def tasks(self, only: str | None, limit: int) -> Iterator[CheckedTask]:
        """Yield each training task once, up to a number for each source.

        Args:
            only: name of the only domain whose tasks are wanted; None for all.
            limit: largest number of tasks of one source.

        Raises:
            SettingsError: no domain has the name, or a domain gives no tasks.
        """
        by_name = {domain.name: domain for domain in self.domains}
        if only is not None and only not in by_name:
            raise SettingsError(f"no domain {only!r}; there are {', '.join(sorted(by_name))}")
        for source in self.sources:
            wanted = (task for task in self._drawn(source) if only in (None, task.domain))
            if isinstance(source, Domain) and only not in (None, source.name):
                continue
            for task in islice(once(wanted), limit):
                domain = by_name[task.domain]
                with _domain_errors(domain):
                    digests = domain.digests(task)
                yield CheckedTask(domain, task, digests)

    def _drawn(self, source: Domain | tuple[Task, ...]) -> Iterator[Task]:
        if isinstance(source, tuple):
            yield from source
            return
        with _domain_errors(source):
            tasks = iter(source.tasks(Split.TRAIN, self.seed))
        while True:
            with _domain_errors(source):
                if (task := next(tasks, None)) is None:
                    return
            yield checked_task(task)


@contextmanager
def _domain_errors(domain: Domain) -> Iterator[None]:
    """Convert what a user's domain raises to an error that names the domain."""
    try:
        yield
    except RollartError:
        raise
    except Exception as error:
        said = f"domain {domain.name!r} gives no tasks: {error_line(error)}"
        raise SettingsError(said) from error


def once(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield each task of an endless source once, until it only repeats those that it gave."""
    seen: set[tuple[str, str]] = set()
    repeated = 0
    for task in tasks:
        key = task.task_id, task.payload
        if key in seen:
            repeated += 1
            if repeated > _REPEATED * len(seen):
                return
            continue
        seen.add(key)
        repeated = 0
        yield task


def check_source(path: str | Path) -> CheckSource:
    """Return the tasks of a pipeline file, of a folder of tasks, or of a domain in text form.

    Raises:
        PipelineError: the file cannot be loaded.
        SettingsError: no domain reads the folder, the text names none, or the pipeline's tasks are
            in a Ray dataset.
    """
    where, text = Path(path), str(path)
    if where.is_dir() or (not where.exists() and _names_environment(text)):
        domain = domain_of_folder(where) if where.is_dir() else _named(text)
        return CheckSource((domain,), (domain,), 0, _TIMEOUT_S, None)
    if not where.exists() and not where.suffix:
        known = ", ".join(ENVIRONMENTS.names())
        raise SettingsError(f"{text!r} is no file, no folder and no environment; there are {known}")
    pipeline = pipeline_in(read_source(path, "pipeline"), path)
    if pipeline.offline:
        raise SettingsError(f"{path}: the pipeline trains on what is stored, and has no tasks")
    for source in pipeline.tasks.sources:
        if not isinstance(source, Domain | tuple):
            raise SettingsError(f"{path}: tasks of a {type(source).__name__} cannot be checked")
    return CheckSource(
        pipeline.tasks.sources,
        pipeline.tasks.domains,
        pipeline.tasks.seed,
        pipeline.rollout.step_timeout_s,
        where,
    )


def _names_environment(text: str) -> bool:
    return text.endswith(")") or text in ENVIRONMENTS.names()


def _named(text: str) -> Domain:
    """Return the domain that a text names, with its settings or their defaults."""
    try:
        return named_domain(text)
    except SettingsError as error:
        if text not in ENVIRONMENTS.names():
            raise
        raise SettingsError(
            f"environment {text!r} makes no tasks without settings: {error}; give them, as in "
            f"'{text}(...)', or a pipeline file that uses it"
        ) from error
