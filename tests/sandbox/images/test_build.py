"""Images that are made in boxes: from simple Dockerfiles, and by scripts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.blocking import BlockingSandbox
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.images.build import build_image, prepared
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.dockerfile import CopyStep, FolderStep, RunStep, base_of, parse
from rollart_flow.sandbox.images.settings import use_cache
from tests.sandbox.images.builders import tree

boxes = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())
LIMITS = SandboxLimits(memory_mb=256, disk_mb=32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[ImageCache]:
    """The cache of this process."""
    made = ImageCache(tmp_path / "images")
    use_cache(made)
    yield made
    use_cache(None)


def context(tmp_path: Path, dockerfile: str, **files: str) -> Path:
    """A folder with a Dockerfile and other files."""
    folder = tree(tmp_path / "context", **files)
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return folder


def test_a_dockerfile_is_read() -> None:
    text = (
        "# syntax=docker/dockerfile:1\nFROM base:1\nENV A=1 B='two words' PATH=/x:$PATH\n"
        "ENV C $A and ${B}\nworkdir /app\nWORKDIR sub\nUSER agent\n"
        'RUN one && \\\n  # a comment\n  two\nRUN ["three", "a b"]\n'
        'COPY a b/c ./\nCOPY ["d e", "$A"]\n'
    )
    assert base_of(text) == "base:1"
    read = parse(text, {"PATH": "/y"}, "")
    env = {"A": "1", "B": "two words", "PATH": "/x:/y", "C": "1 and two words"}
    assert (read.env, read.workdir) == (env, "/app/sub")
    assert read.steps == (
        FolderStep("/app"),
        FolderStep("/app/sub"),
        RunStep("one &&    two", env, "/app/sub"),
        RunStep(("three", "a b"), env, "/app/sub"),
        CopyStep(("a", "b/c"), "/app/sub/"),
        CopyStep(("d e",), "/app/sub/1"),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("FROM other", "line 2: FROM is not supported; FROM once"),
        ("ADD http://x /", "line 2: ADD is not supported"),
        ("CMD true", "line 2: CMD is not supported"),
        ("RUN --mount=type=cache true", "line 2: RUN: options and here-documents"),
        ("RUN <<END", "here-documents"),
        ('RUN ["a", 1]', "something else than words"),
        ("COPY --chown=1 a b", "without options"),
        ("COPY a", "sources and a target"),
        ("COPY *.py /", "is a pattern"),
        ("WORKDIR ../etc", r"'\.\./etc' has '\.\.'"),
        ("ENV A=1 B", "NAME=VALUE"),
        ("USER a b", "one name"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(ImageError, match=message) as caught:
        parse(f"FROM host\n{line}\n", {}, "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "RUN true", "FROM a AS b", "FROM"])
def test_a_dockerfile_begins_with_from(text: str) -> None:
    with pytest.raises(ImageError, match="begins with FROM|it is empty"):  # noqa: RUF043
        base_of(text)


@boxes
def test_an_image_is_built_once_and_again_when_a_copied_file_changes(
    tmp_path: Path, cache: ImageCache
) -> None:
    dockerfile = (
        "FROM host\nENV GREETING=hello PATH=/opt/bin:$PATH\nWORKDIR /opt/app\nCOPY src .\n"
        "COPY tool /opt/bin/\nRUN cat data > made && chmod +x /opt/bin/tool\n"
        "RUN ! python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 1)\"\n"
    )
    folder = context(
        tmp_path,
        dockerfile,
        src__data="one",
        src__deep__file="x",
        tool="#!/bin/sh\necho $GREETING\n",
    )
    image = build_image(folder, name="app", limits=LIMITS)
    assert image == f"app@{cache.digest('app')}"
    images = cache.local.images()
    assert build_image(folder, name="app", limits=LIMITS) == image
    assert cache.local.images() == images
    spec = SandboxSpec(image=image, workdir="/opt/app", limits=LIMITS)
    with BlockingSandbox(spec) as box:
        result = box.exec("cat made; tool; ls; cat deep/file")
        assert result.stdout == "onehello\ndata\ndeep\nmade\nx", result
    with cache.acquire(image) as lease:
        assert lease.about.config.workdir == "/opt/app"
        assert not (lease.root / "etc" / "passwd").exists()
    (folder / "src" / "data").write_text("two")
    assert build_image(folder, limits=LIMITS) != image.partition("@")[2]
    (folder / "Dockerfile").write_text(f"FROM {image}\nRUN echo more >> made\n")
    later = build_image(folder, limits=LIMITS)
    with BlockingSandbox(SandboxSpec(image=later, workdir="/opt/app", limits=LIMITS)) as box:
        assert box.exec("cat made; tool").stdout == "onemore\nhello\n"


@boxes
def test_steps_that_fail_say_which_and_why(tmp_path: Path, cache: ImageCache) -> None:
    for line, message in {
        "RUN echo no such thing >&2; exit 3": r"RUN echo .* failed \(exit code 3\): no such thing",
        "RUN head -c 99m /dev/zero > /x": "No space left",
        "COPY missing /": "COPY missing: .* has no such file",
        "COPY out /": "COPY out: the path leads out of",
    }.items():
        folder = context(tmp_path, f"FROM host\n{line}\n")
        if not (folder / "out").is_symlink():
            (folder / "out").symlink_to("/etc")
        with pytest.raises(ImageError, match=message):
            build_image(folder, limits=LIMITS)
    with pytest.raises(ImageError, match=r"FROM python:3: no image .* add one with ImageCache"):
        build_image(context(tmp_path, "FROM python:3"))
    with pytest.raises(ImageError, match="cannot be read"):
        build_image(tmp_path / "nowhere")
    assert not os.listdir(cache.local.folder / "work")


@boxes
@pytest.mark.parametrize("writable", [False, True])
def test_a_state_is_prepared_once_and_begins_every_box(
    tmp_path: Path, cache: ImageCache, writable: bool
) -> None:
    spec = SandboxSpec(limits=LIMITS)
    if writable:
        base = build_image(context(tmp_path, "FROM host\nENV A=1\n"), limits=LIMITS)
        spec = SandboxSpec(image=base, writable=True, limits=LIMITS)
    script = "echo $$ > which; mkdir -p /opt; echo installed > /opt/package"
    first, again = prepared(spec, script), prepared(spec, script)
    assert (first, first.digest) == (again, again.digest)
    which = set()
    for _ in range(2):
        with BlockingSandbox(snapshot=first) as box:
            result = box.exec("cat which; cat /opt/package; echo $A; echo changed > which")
            which.add(result.stdout)
    assert len(which) == 1
    assert result.stdout.endswith("installed\n1\n" if writable else "\n\n")
    with pytest.raises(ImageError, match=r"the script failed \(exit code 1\)"):
        prepared(spec, "exit 1")
    with pytest.raises(ImageError, match=r"the script failed \(time limit\)"):
        prepared(spec, "sleep 60", timeout_s=0.2)
