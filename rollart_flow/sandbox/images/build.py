"""Images that are made once per node: from a Dockerfile, or by a script in a box.

Both run in boxes, without network and within limits, and are kept under the digest of everything
that decides their result.
"""

import asyncio
import hashlib
import io
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.base import CommandResult, SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.bubblewrap.exporting import BubblewrapSandbox
from rollart_flow.sandbox.environment_key import environment_key
from rollart_flow.sandbox.images.cache import MAX_BYTES, ImageCache
from rollart_flow.sandbox.images.digest import ImageConfig, describe, hex_digits, is_digest
from rollart_flow.sandbox.images.dockerfile import (
    CopyStep,
    Dockerfile,
    FolderStep,
    RunStep,
    Step,
    base_of,
    parse,
)
from rollart_flow.sandbox.images.settings import default_cache
from rollart_flow.sandbox.images.tree import TreeWriter
from rollart_flow.sandbox.registry import create_sandbox
from rollart_flow.text import one_line

BUILD_LIMITS = SandboxLimits(memory_mb=2048, disk_mb=2048, processes=512)
"""Limits of the box of a build."""
_SNAPSHOT = "snapshot.tar"
_SYSTEM = ("proc", "dev", "tmp", "run", "etc")
"""Folders that an image without a base has."""
Play = Callable[[BubblewrapSandbox], Awaitable[None]]
"""Work in a box before its files are kept."""


def build_image(
    context: str | Path,
    *,
    dockerfile: str = "Dockerfile",
    base: str = "",
    name: str = "",
    cache: ImageCache | None = None,
    limits: SandboxLimits = BUILD_LIMITS,
    timeout_s: float = 600.0,
) -> str:
    """Build an image from a folder with a Dockerfile; return its digest as `ImageCache.add`.

    FROM names an image of the cache, `scratch`, or `host`: the `/usr` and Python of this host.

    Args:
        context: folder that COPY copies from.
        dockerfile: path of the Dockerfile in it.
        base: image in place of the one after FROM, in the same form; by default that one.
        name: by which `ImageCache.digest` finds the image.
        cache: where the base is and the image goes; by default that of this process.
        limits: bounds of the box of the steps.
        timeout_s: longest time of one RUN [s].

    Raises:
        ImageError: an instruction is not supported, the base is unknown, or a step failed.
        SandboxError: the box of the steps failed.
    """
    cache, folder = cache or default_cache(), Path(context)
    text = _text(folder / dockerfile)
    base = _base(cache, base or base_of(text))
    with cache.acquire(base) as lease:
        config = lease.about.config
    steps = parse(text, config.env, config.workdir)
    final = ImageConfig(
        env={**config.env, **steps.env}, workdir=steps.workdir or config.workdir, host=config.host
    )
    spec = SandboxSpec(
        image=base,
        writable=True,
        workdir="/",
        limits=replace(limits, lifetime_s=(len(steps.steps) + 1) * timeout_s),
    )

    def make() -> str:
        with tempfile.TemporaryDirectory() as empty:
            Path(empty).chmod(0o755)

            async def play(box: BubblewrapSandbox) -> None:
                for step in steps.steps:
                    await _play(step, box, folder, Path(empty), timeout_s)

            return cache.add_written(lambda root: _written(spec, play, root, final))

    key = _digest([hex_digits(base), final.json(), *_described(steps, folder)])
    digest = cache.once(f"build-{key}", make)
    return cache.label(digest, name) if name else digest


def prepared(
    spec: SandboxSpec,
    script: str,
    *,
    cache: ImageCache | None = None,
    timeout_s: float = 600.0,
) -> SandboxSnapshot:
    """Run a script once in a box, and return the snapshot with which all others begin.

    With `writable`, the snapshot's spec has an image with all that the script changed; otherwise
    the snapshot has the files below the work folder.

    Args:
        spec: contents and limits of the boxes.
        script: lines for `/bin/sh`, run in the work folder.
        cache: where the state is kept; by default that of this process.
        timeout_s: longest time of the script [s].

    Raises:
        ImageError: the script failed.
        SandboxError: its box failed.
    """
    cache = cache or default_cache()

    async def play(box: BubblewrapSandbox) -> None:
        _check(await box.exec(script, timeout_s=timeout_s), "the script")

    def make() -> str:
        if spec.writable:
            return cache.add_written(lambda root: _written(spec, play, root, _config(cache, spec)))
        archive = asyncio.run(_snapshot(spec, play))
        return cache.add_written(lambda root: _kept(archive, root))

    digest = cache.once(f"prepared-{environment_key(spec, script=script)}", make)
    if spec.writable:
        return SandboxSnapshot(replace(spec, image=digest), b"")
    with cache.acquire(digest) as lease:
        return SandboxSnapshot(spec, (lease.root / _SNAPSHOT).read_bytes())


def _base(cache: ImageCache, name: str) -> str:
    """Return the digest of the image after FROM."""
    if name in ("scratch", "host"):
        return cache.add_written(lambda root: _empty(root, host=name == "host"))
    digest = name if is_digest(name) else cache.digest(name)
    if digest is None:
        raise ImageError(
            f"FROM {name}: no image of the cache has this name; "
            f"add one with ImageCache.add(source, name={name!r}), or begin with scratch or host"
        )
    return digest


def _empty(root: Path, *, host: bool) -> ImageConfig:
    writer = TreeWriter(root, 1 << 20)
    for name in _SYSTEM:
        writer.folder(name)
    return ImageConfig(host=host)


def _written(spec: SandboxSpec, play: Play, root: Path, config: ImageConfig) -> ImageConfig:
    """Write the root of a box, in which something was done, to a tree."""

    async def run() -> None:
        async with await create_sandbox(spec) as box:
            assert isinstance(box, BubblewrapSandbox)
            await play(box)
            await box.export(TreeWriter(root, MAX_BYTES))

    asyncio.run(run())
    return config


async def _snapshot(spec: SandboxSpec, play: Play) -> bytes:
    async with await create_sandbox(spec) as box:
        assert isinstance(box, BubblewrapSandbox)
        await play(box)
        return (await box.snapshot()).archive


def _kept(archive: bytes, root: Path) -> ImageConfig:
    """Keep the archive of a snapshot as an image with one file."""
    TreeWriter(root, MAX_BYTES).file(_SNAPSHOT, io.BytesIO(archive))
    return ImageConfig()


def _config(cache: ImageCache, spec: SandboxSpec) -> ImageConfig:
    """Return the configuration of a spec's image, which what is made from it has as well."""
    if spec.image is None or not is_digest(spec.image):
        return ImageConfig()
    with cache.acquire(spec.image) as lease:
        return lease.about.config


async def _play(
    step: Step, box: BubblewrapSandbox, context: Path, empty: Path, timeout_s: float
) -> None:
    if isinstance(step, RunStep):
        done = await box.exec(step.command, env=step.env, cwd=step.workdir, timeout_s=timeout_s)
        _check(done, f"RUN {step.command if isinstance(step.command, str) else step.command[0]}")
        return
    for source, target in _uploads(step, context, empty):
        if target != "/":
            await box.upload(source, target)


def _uploads(step: FolderStep | CopyStep, context: Path, empty: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files and folders that a step puts into the image, with their paths there."""
    if isinstance(step, FolderStep):
        yield empty, step.path
        return
    for source in step.sources:
        path = _source(context, source)
        if path.is_dir():
            yield empty, step.target.rstrip("/") or "/"
            for child in sorted(path.iterdir()):
                yield child, f"{step.target.rstrip('/')}/{child.name}"
        else:
            yield path, f"{step.target}{path.name}" if step.target.endswith("/") else step.target


def _check(done: CommandResult, what: str) -> None:
    """Refuse a command that failed, with the last line that it wrote."""
    if done.ok:
        return
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    why = f"{done.killed_by} limit" if done.killed_by else f"exit code {done.exit_code}"
    last = f": {one_line(lines[-1], 200)}" if lines else ""
    raise ImageError(f"{one_line(what, 100)} failed ({why}){last}")


def _source(context: Path, source: str) -> Path:
    """Return a path of the context that exists and lies in it, also after following links."""
    path = (context / source.lstrip("/")).resolve()
    if not path.is_relative_to(context.resolve()):
        raise ImageError(f"COPY {source}: the path leads out of {context}")
    if not path.exists():
        raise ImageError(f"COPY {source}: {context} has no such file or folder")
    return path


def _described(dockerfile: Dockerfile, context: Path) -> Iterator[Any]:
    """Yield all that decides the result of steps, with the content of what is copied."""
    for step in dockerfile.steps:
        yield [type(step).__name__, asdict(step)]
        for source in step.sources if isinstance(step, CopyStep) else ():
            path = _source(context, source)
            if path.is_dir():
                yield describe(path, ImageConfig()).digest
            else:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                yield [content, path.stat().st_mode & 0o777]


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"{path}: the Dockerfile cannot be read: {error}") from error
