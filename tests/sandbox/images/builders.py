"""Archives and trees for tests of images."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def file(name: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A regular file of an archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, content


def other(name: str, kind: bytes, target: str = "", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """An entry without content."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, b""


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of these entries, unchecked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def tree(folder: Path, **files: str) -> Path:
    """A folder with files whose paths have `__` in place of slashes."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def docker_save(folder: Path, layers: Sequence[bytes], config: Any) -> Path:
    """A folder as `docker save` writes it."""
    folder.mkdir()
    names = []
    for index, layer in enumerate(layers):
        names.append(f"layer{index}/layer.tar")
        (folder / names[-1]).parent.mkdir()
        (folder / names[-1]).write_bytes(layer)
    (folder / "config.json").write_text(json.dumps({"config": config}))
    manifest = [{"Config": "config.json", "RepoTags": ["a:b"], "Layers": names}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def oci(folder: Path, layers: Sequence[bytes], config: Any, architecture: str) -> Path:
    """A folder in the OCI image layout, with layers that gzip compressed and a nested index."""
    (folder / "blobs" / "sha256").mkdir(parents=True)

    def blob(data: bytes) -> dict[str, Any]:
        digits = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / "sha256" / digits).write_bytes(data)
        return {"digest": f"sha256:{digits}", "size": len(data)}

    manifest = {
        "config": blob(json.dumps({"config": config}).encode()),
        "layers": [blob(gzip.compress(layer)) for layer in layers],
    }
    entry = {**blob(json.dumps(manifest).encode()), "platform": {"architecture": architecture}}
    inner = blob(json.dumps({"manifests": [entry]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [inner]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
