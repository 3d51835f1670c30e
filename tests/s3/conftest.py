"""One S3 server for all tests of this folder, and a prefix of its one bucket for each."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3.server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that is shared; who kills it starts one of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as started:
        started.client().create_bucket(Bucket=BUCKET)
        yield started


@pytest.fixture
def remote(
    server: S3Server,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Address of an empty store, which this process finds as users do: by its environment."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{BUCKET}/{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}"
