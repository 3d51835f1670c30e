"""The stream of tasks from which the scheduler admits groups, in an order fixed by the seed.

Every section of the stream has the pipeline's shares. The n-th task is the same in every process,
so that a resumed run needs only a cursor.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from rollart_flow.blocked import blocking
from rollart_flow.envs.base import Domain
from rollart_flow.errors import RunFailedError
from rollart_flow.shares import by_share
from rollart_flow.text import one_line, storable
from rollart_flow.types import Split, Task


def task_stream(
    sources: Sequence[Any],
    *,
    seed: int,
    weights: Mapping[str, float] | None = None,
    domains: Collection[str] | None = None,
) -> Iterator[Task]:
    """Yield tasks of all sources without end, mixed by share.

    Args:
        sources: sources, each a `Domain`, a tuple of `Task`, or a `ray.data.Dataset` with columns
            task_id, domain, and payload. Tuples and datasets are repeated without end; tuples are
            reshuffled each time.
        seed: seed of every order.
        weights: relative share by domain; a source that is not a domain has the share of the
            domain of its first task.
        domains: names of the domains that run tasks; None accepts every domain.

    Raises:
        RunFailedError: a source has no task, or a task of another domain.
    """
    streams = [_stream(source, seed, place) for place, source in enumerate(sources)]
    names = [getattr(source, "name", f"number {place}") for place, source in enumerate(sources)]
    heads = [_next(*each, domains) for each in zip(streams, names, strict=True)]
    shares = [(weights or {}).get(head.domain, 1.0) for head in heads]
    for chosen in by_share(shares):
        yield heads[chosen]
        heads[chosen] = _next(streams[chosen], names[chosen], domains)


def _next(stream: Iterator[Task], name: str, domains: Collection[str] | None) -> Task:
    with blocking(f"next task of source {name}"):
        task = next(stream, None)
    if task is None:
        raise RunFailedError("tasks: a source has no task to train on; give it at least one")
    task = checked_task(task)
    if domains is not None and task.domain not in domains:
        raise RunFailedError(
            f"tasks: task {task.task_id!r} has domain {task.domain!r}, but the rollout runs only "
            f"{', '.join(sorted(domains))}; add the domain or remove the task"
        )
    return task


def checked_task(task: object) -> Task:
    """Return a task of users' code with texts that can be stored, and JSON as its payload.

    Raises:
        RunFailedError: it is no task, or has a value that is no text.
    """
    if not isinstance(task, Task):
        raise RunFailedError(f"tasks: a source gave {type(task).__name__}; it must give Task(...)")
    for name in ("task_id", "domain"):
        if not isinstance(getattr(task, name), str):
            kind = type(getattr(task, name)).__name__
            raise RunFailedError(f"tasks: the {name} of a task is {kind}; it must be a str")
    payload: object = task.payload
    if not isinstance(payload, str):
        try:
            payload = json.dumps(payload, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise RunFailedError(
                f"tasks: the payload of task {task.task_id!r} is no JSON: {one_line(error)}"
            ) from error
    return Task(storable(task.task_id), storable(task.domain), storable(payload))


def _stream(source: Any, seed: int, place: int) -> Iterator[Task]:
    if isinstance(source, Domain):
        return source.tasks(Split.TRAIN, seed)
    if isinstance(source, tuple):
        return _shuffled(source, Random(f"{seed}/{place}"))
    return _rows(source)


def _shuffled(tasks: tuple[Task, ...], random: Random) -> Iterator[Task]:
    while tasks:
        yield from random.sample(tasks, len(tasks))


def _rows(dataset: Any) -> Iterator[Task]:
    while True:
        empty = True
        for row in dataset.iter_rows():
            empty = False
            payload = row.get("payload", "{}")
            text = payload if isinstance(payload, str) else json.dumps(payload, sort_keys=True)
            yield Task(str(row["task_id"]), str(row["domain"]), text)
        if empty:
            return
