"""Sources of images: folders, archives and layers, also hostile ones."""

import bz2
import gzip
import io
import lzma
import os
import platform
import stat
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.images.digest import ImageConfig, describe
from rollart_flow.sandbox.images.sources import fill
from rollart_flow.sandbox.images.tree import TreeWriter
from tests.sandbox.images.builders import docker_save, file, oci, other, tar, tree

MOST = 1 << 20
SECRET = "of the host"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty tree."""
    made = tmp_path / "image" / "root"
    made.mkdir(parents=True)
    return made


def unpacked(archive: bytes, root: Path, most: int = MOST) -> ImageConfig:
    path = root.parent / "archive"
    path.write_bytes(archive)
    return fill(path, root, most)


def files(root: Path) -> dict[str, str]:
    """Content of each file and target of each link by path."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[str(path.relative_to(root))] = path.read_text()
    return found


def test_equal_trees_have_one_digest_whatever_the_source(tmp_path: Path, root: Path) -> None:
    source = tree(tmp_path / "source", etc__passwd="root", usr__bin__tool="run")
    (source / "usr" / "bin" / "tool").chmod(0o4755)
    (source / "link").symlink_to("/usr/bin/tool")
    os.link(source / "etc" / "passwd", source / "etc" / "same")
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as archive:
        archive.add(source, ".")
    compressed = {
        "gz": gzip.compress(plain.read_bytes()),
        "bz2": bz2.compress(plain.read_bytes()),
        "xz": lzma.compress(plain.read_bytes()),
        "zst": bytes(pa.Codec("zstd").compress(plain.read_bytes())),
    }
    fill(source, root, MOST)
    expected = describe(root, ImageConfig())
    assert files(root) == {
        "etc/passwd": "root", "etc/same": "root", "link": "-> /usr/bin/tool", "usr/bin/tool": "run"
    }  # fmt: skip
    assert stat.S_IMODE((root / "usr" / "bin" / "tool").stat().st_mode) == 0o755
    for name, data in {"plain": plain.read_bytes(), **compressed}.items():
        again = tmp_path / name / "root"
        again.mkdir(parents=True)
        unpacked(data, again)
        assert describe(again, ImageConfig()) == expected, name
    (again / "etc" / "passwd").chmod(0o600)
    assert describe(again, ImageConfig()).digest != expected.digest
    assert describe(root, ImageConfig(env={"A": "1"})).digest != expected.digest


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([file("../out")], r"'\.\./out' leads out"),
        ([file("a/../../out")], "leads out"),
        ([other("a", tarfile.LNKTYPE, "/etc/passwd")], "'/etc/passwd', which is no file of the"),
        ([other("a", tarfile.LNKTYPE, "../out")], "leads out"),
        ([other("disk", tarfile.BLKTYPE, devmajor=8)], "'disk' is a device"),
        ([other("mem", tarfile.CHRTYPE, devmajor=1, devminor=1)], "'mem' is a device"),
        ([other("pipe", tarfile.FIFOTYPE)], "'pipe' is a device, a pipe"),
        ([file("a", bytes(MOST))], "larger than the 1 MiB"),
        ([file(f"{number}", b"") for number in range(400)], "larger than the 1 MiB"),
        ([file("a"), file("a/b")], "passes through a file"),
        ([other("a", tarfile.SYMTYPE, "a"), file("a/b")], "too many links"),
        ([file("/")], "would replace the root"),
    ],
)
def test_hostile_archives_are_refused_in_one_line(
    root: Path, entries: list[tuple[tarfile.TarInfo, bytes]], message: str
) -> None:
    with pytest.raises(ImageError, match=message) as caught:
        unpacked(tar(*entries), root)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(root.parent.parent)) == ["image"]


def test_an_entry_behind_a_link_stays_in_the_image(tmp_path: Path, root: Path) -> None:
    outside = tree(tmp_path / "outside", secret=SECRET)
    archive = tar(
        other("absolute", tarfile.SYMTYPE, str(outside)),
        other("relative", tarfile.SYMTYPE, "../../../../../.." + str(outside)),
        file("absolute/secret", b"changed"),
        file("relative/other", b"made"),
        other("linked", tarfile.LNKTYPE, "absolute/secret"),
        file("/rooted", b"in the image"),
        other("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    unpacked(archive, root)
    assert files(outside) == {"secret": SECRET}
    found = files(root)
    assert found[f"{str(outside).lstrip('/')}/secret"] == "changed"
    assert found[f"{str(outside).lstrip('/')}/other"] == "made"
    assert (found["linked"], found["rooted"]) == ("changed", "in the image")
    assert not (root / "dev" / "null").exists()


def test_headers_that_would_fill_the_memory_are_refused(root: Path) -> None:
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(ImageError, match="a header of 1073741824 bytes"):
        unpacked(entry.tobuf() + bytes(1024), root)


@pytest.mark.parametrize("damage", [b"no archive at all", b"\x1f\x8b\x08cut", b"\xfd7zXZ\x00cut"])
def test_what_is_no_archive_is_refused(root: Path, damage: bytes) -> None:
    with pytest.raises(ImageError, match="damaged"):
        unpacked(damage * 100, root)


def test_a_compressed_archive_that_ends_early_is_refused(root: Path) -> None:
    whole = bytes(pa.Codec("zstd").compress(tar(file("a", os.urandom(9000)))))
    with pytest.raises(ImageError, match="damaged"):
        unpacked(whole[:5000], root)


LAYERS = (
    tar(
        file("keep", b"1"), file("gone", b"1"), file("etc/old", b"1"), file("etc/sub/old", b"1"),
        file("was/file", b"1"),
    ),
    tar(
        file("new", b"2"), other(".wh.gone", tarfile.REGTYPE), file("etc/new", b"2"),
        other("etc/.wh..wh..opq", tarfile.REGTYPE), file("etc/sub/new", b"2"),
        other("missing/.wh.nothing", tarfile.REGTYPE), file("was", b"2"),
    ),
    tar(file("keep", b"3"), file(".wh.x/not-a-whiteout", b"3")),
)  # fmt: skip
CONFIG = {"Env": ["PATH=/opt/bin", "A=1=2"], "WorkingDir": "/app"}


@pytest.mark.parametrize("kind", ["docker", "oci", "docker.tar"])
def test_layers_are_applied_with_their_whiteouts(tmp_path: Path, root: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "oci":
        oci(source, LAYERS, CONFIG, MACHINE)
    else:
        docker_save(source, LAYERS, CONFIG)
    if kind == "docker.tar":
        with tarfile.open(tmp_path / "saved.tar", "w") as archive:
            archive.add(source, ".")
        source = tmp_path / "saved.tar"
    config = fill(source, root, MOST)
    assert config == ImageConfig(env={"PATH": "/opt/bin", "A": "1=2"}, workdir="/app")
    assert files(root) == {
        ".wh.x/not-a-whiteout": "3", "etc/new": "2", "etc/sub/new": "2", "keep": "3", "new": "2",
        "was": "2",
    }  # fmt: skip
    assert os.listdir(root.parent) == ["root"]


@pytest.mark.parametrize("name", [".wh...", ".wh.", "a/.wh..", ".wh.."])
def test_whiteouts_remove_nothing_outside(tmp_path: Path, root: Path, name: str) -> None:
    outside = tree(tmp_path / "outside", secret=SECRET)
    links = tar(other("a", tarfile.SYMTYPE, "../../outside"), file("b"))
    through = tar(other("a/.wh.secret", tarfile.REGTYPE), other("a/.wh..wh..opq", tarfile.REGTYPE))
    fill(docker_save(tmp_path / "through", [links, through], {}), root, MOST)
    assert files(outside) == {"secret": SECRET}
    named = docker_save(tmp_path / "named", [tar(other(name, tarfile.REGTYPE))], {})
    with pytest.raises(ImageError, match="names no file"):
        fill(named, root, MOST)


def test_layers_outside_of_the_archive_are_refused(tmp_path: Path, root: Path) -> None:
    source = docker_save(tmp_path / "source", [LAYERS[0]], {})
    (tmp_path / "layer.tar").write_bytes(LAYERS[0])
    manifest = source / "manifest.json"
    manifest.write_text(manifest.read_text().replace("layer0/layer.tar", "../layer.tar"))
    with pytest.raises(ImageError, match="leads out of source"):
        fill(source, root, MOST)
    (source / "layer0" / "layer.tar").unlink()
    (source / "layer0" / "layer.tar").symlink_to(tmp_path / "layer.tar")
    manifest.write_text(manifest.read_text().replace("../layer.tar", "layer0/layer.tar"))
    with pytest.raises(ImageError, match="leads out of source"):
        fill(source, root, MOST)


def test_a_damaged_blob_and_another_machine_are_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ImageError, match="has no image for"):
        fill(oci(tmp_path / "other", LAYERS, CONFIG, "s390x"), root, MOST)
    source = oci(tmp_path / "damaged", LAYERS, CONFIG, MACHINE)
    for blob in (source / "blobs" / "sha256").iterdir():
        if blob.read_bytes().startswith(b"\x1f\x8b"):
            blob.write_bytes(blob.read_bytes() + b"more")
    with pytest.raises(ImageError, match=r"is damaged"):
        fill(source, root, MOST)


def test_a_missing_source_is_named(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ImageError, match="nowhere does not exist"):
        fill(tmp_path / "nowhere", root, MOST)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_belong_to_the_user_of_the_boxes(root: Path) -> None:
    unpacked(tar(file("a", uid=12, gid=12), other("b", tarfile.SYMTYPE, "a")), root)
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in (root, *root.iterdir())}
    assert owners == {(65534, 65534)}


def test_names_of_no_encoding_are_kept(tmp_path: Path, root: Path) -> None:
    (tmp_path / "source").mkdir()
    Path(os.fsdecode(bytes(tmp_path / "source") + b"/\xff\xfe")).write_text("x")
    fill(tmp_path / "source", root, MOST)
    assert os.listdir(bytes(root)) == [b"\xff\xfe"]
    assert describe(root, ImageConfig()).entries == 1


def test_a_tree_of_another_size_than_announced_is_refused(root: Path) -> None:
    writer = TreeWriter(root, 3 * 4096)
    writer.folder("a")
    with pytest.raises(ImageError, match="larger"):
        writer.file("a/b", io.BytesIO(bytes(9000)))
