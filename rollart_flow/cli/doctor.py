"""`rollart doctor`: what this machine has, what is usable, and what to do about the rest.

Packages are looked up by their metadata, so that nothing heavy is imported.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import typer

from rollart_flow.cli.arguments import AsJson, Store
from rollart_flow.cli.output import console, grid, print_json
from rollart_flow.engines.registry import ENGINES
from rollart_flow.envs.registry import ENVIRONMENTS
from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.registry import Registry, Requirement
from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.serverless.transports.registry import REWARD_TRANSPORTS
from rollart_flow.trackers.registry import TRACKERS
from rollart_flow.trainers.registry import TRAINERS
from rollart_flow.weights import WEIGHT_TRANSPORTS

T = TypeVar("T")

_REQUIRED = ("torch", "ray", "deltalake", "polars", "gymnasium")
_STORE = Requirement("boto3", ("boto3",), "s3")
"""The optional package of runs in S3."""
_FAMILIES: tuple[Registry[Any], ...] = (
    ENGINES, TRAINERS, WEIGHT_TRANSPORTS, REWARD_TRANSPORTS, ENVIRONMENTS, SANDBOXES, TRACKERS,
)  # fmt: skip
_GIB = 1 << 30
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    name: str
    version: str | None
    """Version or size; None where it is not there."""
    usable: bool
    hint: str
    """Advice, or the purpose of the checked part; empty if all is well."""
    required: bool = False


def doctor(store: Store = None, as_json: AsJson = False) -> None:
    """Check this machine; exit code 1 if something that every run needs is missing."""
    findings = _by_name(examine(store))
    if as_json:
        names = ("name", "version", "usable", "hint")
        print_json([{name: getattr(f, name) for name in names} for f in findings])
    else:
        marks = ("ok" if f.usable else "MISSING" if f.required else "-" for f in findings)
        pairs = zip(marks, findings, strict=True)
        rows = ((mark, f.name, f.version or "", f.hint) for mark, f in pairs)
        console().print(grid(("", "name", "version", "hint"), rows))
    if any(f.required and not f.usable for f in findings):
        raise typer.Exit(1)


def _by_name(findings: Iterable[Finding]) -> list[Finding]:
    """Return one row for each name: variants of two families may have one name, and a package."""
    rows: dict[str, Finding] = {}
    for finding in findings:
        known = rows.get(finding.name)
        if known is None or (known.usable and not finding.usable):
            rows[finding.name] = finding
    return list(rows.values())


def examine(store: str | None = None) -> Iterator[Finding]:
    """Everything that is looked for, required things first."""
    cuda = _cuda()
    yield _python()
    for name in _REQUIRED:
        found = _version(name)
        hint = "" if found else f"pip install {name}"
        yield Finding(name, found, found is not None, hint, required=True)
    yield from _variants(gpu=cuda.usable)
    yield from _sandboxes()
    yield cuda
    yield _nccl(gpu=cuda.usable)
    yield _cpus()
    yield _memory()
    yield _disk(store)
    yield _s3(store)
    yield _shared_memory()


def _variants(*, gpu: bool) -> Iterator[Finding]:
    """Yield the packages that variants need, then the variants that cannot be loaded."""
    families: tuple[Registry[Any], ...] = (ENGINES, TRAINERS, WEIGHT_TRANSPORTS)
    declared = [v.requirements for family in families for _, v in _loadable(family)]
    others: tuple[Registry[Any], ...] = (REWARD_TRANSPORTS, TRACKERS)
    remote = [v.requirements for family in others for _, v in _loadable(family)]
    in_turn = (*chain.from_iterable(zip_longest(*declared)), _STORE, *chain.from_iterable(remote))
    needed: dict[str, Requirement] = {}
    for requirement in filter(None, in_turn):
        needed.setdefault(requirement.name, requirement)
    yield from (_package(requirement, gpu=gpu) for requirement in needed.values())
    for registry in _FAMILIES:
        for name in registry.names():
            try:
                registry.load(name)
            except SettingsError as error:
                yield Finding(name, None, False, error.message)


def _loadable(registry: Registry[T]) -> Iterator[tuple[str, T]]:
    for name in registry.names():
        with suppress(SettingsError):  # of a package, which `_variants` reports
            yield name, registry.load(name)


def _package(requirement: Requirement, *, gpu: bool) -> Finding:
    found = next((v for v in map(_version, requirement.packages) if v), None)
    if found is None:
        hint = f"optional: pip install 'rollart-flow[{requirement.extra}]'"
        return Finding(requirement.name, None, False, hint)
    problem = requirement.problem() if requirement.problem else ""
    summary = requirement.summary(gpu) if requirement.summary else ""
    return Finding(requirement.name, found, not problem, problem or summary)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _python() -> Finding:
    usable = (3, 11) <= tuple(map(int, platform.python_version_tuple()[:2])) < (3, 14)
    hint = "" if usable else "take Python 3.11, 3.12 or 3.13"
    return Finding("python", platform.python_version(), usable, hint, required=True)


def _output(*command: str) -> str | None:
    """The output of a command; None if it is not installed, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _sandboxes() -> Iterator[Finding]:
    """Whether boxes can really be made: containers often forbid it."""
    for name, variant in _loadable(SANDBOXES):
        problem = variant.problem()
        yield Finding(name, variant.version(), not problem, problem and f"sandbox: {problem}")


def _cuda() -> Finding:
    found = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not found:
        return Finding("cuda", None, False, "no NVIDIA GPU; everything runs on CPUs")
    cards = found.splitlines()
    return Finding("cuda", f"{len(cards)} x {cards[0]}", True, "")


def _nccl(*, gpu: bool) -> Finding:
    """Whether weights can be sent from the trainer's GPU to an engine's."""
    sending = [name for name, way in _loadable(WEIGHT_TRANSPORTS) if way.capabilities.sends]
    ways = " and ".join(f"weights={name!r}" for name in sending)
    if not gpu:
        return Finding("nccl", None, False, f"{ways} need NVIDIA GPUs; 'local' works here")
    engines = [engine for _, engine in _loadable(ENGINES) if engine.capabilities.receives_weights]
    needed = [engine.requirements[0] for engine in engines if engine.requirements]
    for requirement in needed:
        if found := _version(requirement.packages[0]):
            of = f"of {requirement.name} {found}"
            return Finding("nccl", of, True, f"{ways} (untried on GPUs)")
    extras = " or ".join(f"'rollart-flow[{requirement.extra}]'" for requirement in needed)
    return Finding("nccl", None, False, f"{ways} need vLLM for GPUs: pip install {extras}")


def _cpus() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = (count or 1) >= 2
    return Finding("cpus", str(count), usable, "" if usable else "two or more are advised")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    usable = total >= 4 * _GIB
    hint = "" if usable else "4 GiB or more are advised"
    return Finding("memory", f"{total / _GIB:.1f} GiB", usable, hint)


def _disk(store: str | None) -> Finding:
    """Space where runs go, or where they will once the folder is made."""
    from rollart_flow.store import files, store_uri

    uri = store_uri(store)
    if files.is_remote(uri):
        return Finding("disk", uri, True, "runs go to an object store")
    folder = Path(uri)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    usable = writable and free >= 2 * _GIB
    hint = "" if usable else "2 GiB or more are advised" if writable else f"cannot write {folder}"
    return Finding("disk", f"{free / _GIB:.1f} GiB free", usable, hint)


def _s3(store: str | None) -> Finding:
    """Whether S3 can be spoken to, and where runs go there, whether the store can be written.

    Says where credentials come from, never what they are.
    """
    from rollart_flow.store import files, store_uri

    uri = store_uri(store)
    wanted = files.is_remote(uri)
    try:
        from rollart_flow.store.s3.access import credentials_source

        source = credentials_source()
        if wanted:
            files.check_writable(files.join(uri, "run"))
    except (MissingExtraError, OSError) as error:
        return Finding("s3", None, False, files.one_line(error), required=wanted)
    hint = "" if source else "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    found = f"credentials: {source}" if source else None
    return Finding("s3", found, source is not None, hint, required=wanted)


def _shared_memory() -> Finding:
    try:
        total = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Finding("shm", None, False, "no /dev/shm; Ray's object store will use /tmp")
    usable = total >= _GIB
    hint = "" if usable else "Ray's object store will use /tmp; in Docker take --shm-size=2g"
    return Finding("shm", f"{total / _GIB:.1f} GiB", usable, hint)
