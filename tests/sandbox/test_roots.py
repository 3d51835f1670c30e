"""Boxes over images: copy-on-write, hostile programs and hostile images."""

import asyncio
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_flow.errors import ImageError, SettingsError
from rollart_flow.sandbox.agent.runtime import stage_folder
from rollart_flow.sandbox.base import Sandbox, SandboxSpec
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.digest import ImageConfig, describe
from rollart_flow.sandbox.images.settings import use_cache
from rollart_flow.sandbox.registry import create_sandbox
from tests.sandbox.conformance import SandboxConformance
from tests.sandbox.hostile import TRIALS, copy_on_write, run

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageCache]:
    """The image cache of the boxes of a test."""
    made = ImageCache(tmp_path_factory.mktemp("images"))
    use_cache(made)
    yield made
    use_cache(None)


def shell_image(cache: ImageCache, folder: Path) -> str:
    """Add an image that is complete by itself: a shell, its libraries, and a file."""
    for name in ("sh", "rm", "mkdir", "ls"):
        _copy(Path(os.path.realpath(f"/bin/{name}")), folder / "usr" / "bin" / name)
    listed = subprocess.run(
        ["ldd", "/bin/sh", "/bin/ls"], capture_output=True, text=True, check=True
    ).stdout
    for path in {word for word in listed.split() if word.startswith("/") and word[-1] != ":"}:
        _copy(Path(path), folder / path.lstrip("/"))
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc" / "release").write_text("of the image\n")
    (folder / "opt" / "folder").mkdir(parents=True)
    (folder / "opt" / "folder" / "file").write_text("of the image\n")
    return cache.add(folder, name="shell", config=ImageConfig(env={"NAME": "image", "B": "1"}))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


class TestCopyOnWrite(SandboxConformance):
    variant = "bubblewrap"

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        over = copy_on_write()
        spec = dataclasses.replace(spec or SandboxSpec(), image=over.image, writable=True)
        return await create_sandbox(spec)


@pytest.mark.parametrize("name", TRIALS)
def test_a_hostile_program_is_contained_where_the_root_can_be_written(name: str) -> None:
    assert asyncio.run(run(name, spec=copy_on_write())) == ""


def test_changes_of_a_box_are_its_own_and_vanish_with_it(cache: ImageCache, tmp_path: Path) -> None:
    image = shell_image(cache, tmp_path / "source")
    before = cache.about(image.rpartition(":")[2])
    assert before is not None
    spec = SandboxSpec(image=image, writable=True, env={"B": "2"})

    async def test() -> None:
        async with await create_sandbox(spec) as box, await create_sandbox(spec) as other:
            command = "echo mine > /etc/release && rm -r /opt/folder && mkdir /opt/folder /new"
            assert (await box.exec(command)).ok
            assert await box.read("/etc/release") == b"mine\n"
            assert (await box.exec("ls /opt/folder; rm /bin/ls; ls")).exit_code == 127
            result = await other.exec("read line < /etc/release; echo $line $NAME$B; ls /opt/*")
            assert result.stdout == "of the image image2\nfile\n"
        async with await create_sandbox(spec) as third:
            assert await third.read("/etc/release") == b"of the image\n"

    asyncio.run(test())
    assert describe(cache.path(image), before.config) == before


def test_without_writable_an_image_of_the_cache_is_read_only(
    cache: ImageCache, tmp_path: Path
) -> None:
    image = shell_image(cache, tmp_path / "source")

    async def test() -> None:
        async with await create_sandbox(SandboxSpec(image=image)) as box:
            assert await box.read("/etc/release") == b"of the image\n"
            assert "Read-only" in (await box.exec("echo x > /etc/release")).stderr
            assert (await box.exec("echo x > /usr/bin/ls")).exit_code != 0

    asyncio.run(test())


def test_an_image_is_in_use_until_its_box_is_closed(cache: ImageCache, tmp_path: Path) -> None:
    image = shell_image(cache, tmp_path / "source")
    digits = image.rpartition(":")[2]

    async def test() -> None:
        async with await create_sandbox(SandboxSpec(image=image)):
            assert not cache.local.evict(digits)
        assert cache.local.evict(digits)
        with pytest.raises(ImageError, match=r"neither on this node nor .* ImageCache\.add"):
            await create_sandbox(SandboxSpec(image=image))

    asyncio.run(test())


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(
    ("link", "workdir", "mounts"),
    [
        ("etc", "/work", {}),
        ("usr", "/usr/work", {}),
        ("opt", "/work", {"/opt/data": "/usr"}),
        ("work", "/work", {}),
    ],
)
def test_links_of_an_image_lead_no_mount_out_of_the_box(
    cache: ImageCache,
    tmp_path: Path,
    link: str,
    workdir: str,
    mounts: dict[str, str],
    writable: bool,
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "outside").mkdir(mode=0o777)
    (tmp_path / "source" / link).symlink_to(f"/oldroot{tmp_path}/outside")
    image = cache.add(tmp_path / "source", config=ImageConfig(host=link != "usr"))
    spec = SandboxSpec(image=image, workdir=workdir, mounts=mounts, writable=writable)
    with pytest.raises(SettingsError, match=f"/{link} is a link in the image"):
        asyncio.run(create_sandbox(spec))
    assert not list((tmp_path / "outside").iterdir())


def test_links_of_an_image_show_no_file_of_the_host(cache: ImageCache, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc" / "link").symlink_to(secret)
    (source / "top").symlink_to(secret)
    image = cache.add(source, config=ImageConfig(host=True))

    async def test(writable: bool) -> None:
        async with await create_sandbox(SandboxSpec(image=image, writable=writable)) as box:
            for path in ("/etc/link", "/top"):
                assert "No such file" in (await box.exec(["cat", path])).stderr

    asyncio.run(test(writable=False))
    asyncio.run(test(writable=True))


def test_what_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SettingsError, match="writable=True needs an image"):
        asyncio.run(create_sandbox(SandboxSpec(writable=True)))
    if os.geteuid() == 0:
        with pytest.raises(SettingsError, match="belongs to another user"):
            asyncio.run(create_sandbox(SandboxSpec(image=str(tmp_path), writable=True)))


def test_boxes_leave_no_mount_behind() -> None:
    spec = copy_on_write()

    async def test() -> None:
        for _ in range(3):
            async with await create_sandbox(spec) as box:
                assert (await box.exec("echo x > /etc/release; grep -c overlay /proc/mounts")).ok

    asyncio.run(test())
    assert str(stage_folder()) not in Path("/proc/self/mountinfo").read_text()
    assert not list(stage_folder().iterdir())
