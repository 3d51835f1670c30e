"""Sources of an image: a folder, a tar archive, or the layers of `docker save` and OCI.

fill(Path("rootfs.tar.gz"), root, most)     writes the tree, returns what its boxes should have
"""

import hashlib
import json
import os
import platform
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.images.archive import decompressed, unpack
from rollart_flow.sandbox.images.digest import ImageConfig
from rollart_flow.sandbox.images.tree import TreeWriter

_LONGEST_JSON_BYTES = 16 << 20
_MOST_INDEXES = 4
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def fill(source: Path, root: Path, max_bytes: int) -> ImageConfig:
    """Write the tree of a source.

    Args:
        source: a folder with a root file system, a tar archive of one, or the folder or archive of
            `docker save` or of the OCI image layout.
        root: the tree, an empty folder; layers of an archive are kept beside it meanwhile.
        max_bytes: bound of the size of the tree [bytes].

    Raises:
        ImageError: the source does not exist, is none of these, is damaged or refused.
        OSError: the disk fails or is full.
    """
    if not source.exists():
        raise ImageError(f"image: {source} does not exist")
    writer = TreeWriter(root, max_bytes)
    if source.is_dir():
        if _is_layered(source):
            return _apply_layers(source, writer)
        _copy(source, writer)
        return ImageConfig()
    with source.open("rb") as file, decompressed(file) as stream:
        unpack(stream, writer)
    if not _is_layered(root):
        return ImageConfig()
    layers = root.with_name("layers")
    root.rename(layers)
    root.mkdir()
    try:
        return _apply_layers(layers, TreeWriter(root, max_bytes))
    finally:
        shutil.rmtree(layers)


def _is_layered(folder: Path) -> bool:
    """Whether a folder is the OCI layout or what `docker save` wrote, not a root file system."""
    layout = (folder / "oci-layout").is_file() and (folder / "index.json").is_file()
    return layout or _is_manifest(folder / "manifest.json")


def _is_manifest(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LONGEST_JSON_BYTES:
        return False
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(found, list) and bool(found) and "Layers" in found[0]


def _copy(source: Path, writer: TreeWriter) -> None:
    """Copy a folder; what is neither file, folder nor link is left out."""
    linked: dict[tuple[int, int], str] = {}
    for folder, folders, names in os.walk(source, onerror=_raise):
        inside = os.path.relpath(folder, source)
        writer.folder(inside, os.stat(folder).st_mode)
        for name in sorted([*folders, *names]):
            path, found = os.path.join(inside, name), os.path.join(folder, name)
            about = os.lstat(found)
            if stat.S_ISLNK(about.st_mode):
                writer.symlink(path, os.readlink(found))
            elif stat.S_ISREG(about.st_mode):
                first = linked.setdefault((about.st_dev, about.st_ino), path)
                if first != path:
                    writer.hard_link(path, first)
                    continue
                with open(found, "rb") as file:
                    writer.file(path, file, about.st_mode, about.st_mtime)


def _raise(error: OSError) -> None:
    raise error


def _apply_layers(folder: Path, writer: TreeWriter) -> ImageConfig:
    """Write the layers of an image, lowest first."""
    layers, config = _manifest(folder)
    for layer in layers:
        with layer.open("rb") as file, decompressed(file) as stream:
            unpack(stream, writer, layer=True)
    return _config(config)


def _manifest(folder: Path) -> tuple[list[Path], Any]:
    """Return the files of the layers and the image's configuration."""
    try:
        if (folder / "index.json").is_file():
            manifest = _oci_manifest(folder, _json(folder, "index.json"))
            layers = [_blob(folder, layer["digest"]) for layer in manifest["layers"]]
            return layers, json.loads(_blob(folder, manifest["config"]["digest"]).read_bytes())
        images = _json(folder, "manifest.json")
        if len(images) != 1:
            raise ImageError(f"image: {folder.name} holds {len(images)} images; save one alone")
        layers = [_inside(folder, layer) for layer in images[0]["Layers"]]
        return layers, _json(folder, images[0]["Config"])
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ImageError(f"image: the manifest of {folder.name} is damaged: {error}") from error


def _oci_manifest(folder: Path, index: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow indexes to the manifest for this machine."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    for _ in range(_MOST_INDEXES):
        if "layers" in index:
            return index
        entries: Sequence[Mapping[str, Any]] = index["manifests"]
        fitting = [
            entry
            for entry in entries
            if entry.get("platform", {}).get("architecture", machine) == machine
        ]
        if not fitting:
            raise ImageError(f"image: {folder.name} has no image for {machine}")
        index = json.loads(_blob(folder, fitting[0]["digest"]).read_bytes())
    raise ImageError(f"image: the indexes of {folder.name} lead nowhere")


def _blob(folder: Path, digest: str) -> Path:
    """Return the file of a blob after comparing its content with its digest."""
    kind, _, digits = digest.partition(":")
    path = _inside(folder, f"blobs/{kind}/{digits}")
    if kind != "sha256":
        raise ImageError(f"image: blobs are verified with sha256, not {kind[:20]!r}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digits:
            raise ImageError(f"image: the blob {digits[:12]} is damaged")
    return path


def _json(folder: Path, name: str) -> Any:
    path = _inside(folder, name)
    if path.stat().st_size > _LONGEST_JSON_BYTES:
        raise ImageError(f"image: {name} is too long")
    return json.loads(path.read_bytes())


def _inside(folder: Path, name: str) -> Path:
    """Return a file of a folder that lies in it, also after following links."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ImageError(f"image: {name[:200]!r} leads out of {folder.name}")
    if not path.is_file():
        raise ImageError(f"image: {folder.name} has no file {name[:200]!r}")
    return path


def _config(config: Any) -> ImageConfig:
    """Return what a configuration of OCI says about processes."""
    inner = config.get("config") or {}
    pairs = [str(entry).partition("=") for entry in inner.get("Env") or ()]
    env = {name: value for name, _, value in pairs if name}
    return ImageConfig(env=env, workdir=str(inner.get("WorkingDir") or ""))
