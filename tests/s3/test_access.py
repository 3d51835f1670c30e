"""Who may speak to a bucket: every mistake is one line within seconds, and no secret is told."""

import json
import shlex
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.config import Config  # type: ignore[import-untyped]

from rollart_flow.cli import main
from rollart_flow.errors import StoreError
from rollart_flow.pipeline import load_pipeline
from rollart_flow.store import RunWriter, files, list_runs, open_run
from rollart_flow.store.s3 import access
from tests.builders import events, trajectories
from tests.runs import info
from tests.s3.server import BUCKET, OWNER, READER, S3Server

SECONDS = 20
"""A mistake is told well within this, on however busy a machine."""


def refused(store: str) -> str:
    """What is said of a store that cannot be read, in one line, and soon."""
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        list_runs(store)
    assert time.monotonic() - started < SECONDS
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_bucket(remote: str) -> None:
    said = refused("s3://nowhere/runs")
    assert said.startswith("cannot list s3://nowhere/runs: there is no such bucket; make it first")


def test_no_credentials(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no S3 credentials were found; set AWS_ACCESS_KEY_ID and" in refused(remote)
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    assert "(somebody) could not be found; set AWS_PROFILE" in refused(remote)


def test_wrong_credentials(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "no permission; the credentials need to list, read, write and" in refused(remote)


def test_who_may_only_read_reads_and_cannot_write(
    remote: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunWriter.create(f"{remote}/a", info()).close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER.secret)
    assert [found.name for _, found in list_runs(remote)] == ["a"]
    with pytest.raises(StoreError, match=r"^cannot write s3://.*: no permission; the cred"):
        RunWriter.create(f"{remote}/b", info("b"))
    with pytest.raises(StoreError, match=r"^cannot write s3://.*: no permission; the cred"):
        RunWriter.open(f"{remote}/a")


def test_an_endpoint_where_nobody_listens(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 does not answer (EndpointConnectionError); look at" in refused(
        remote
    )


def test_an_endpoint_that_never_answers(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sooner = access._REACH.merge(Config(read_timeout=0.5))
    monkeypatch.setattr(access, "_REACH", sooner)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        port = silent.server_address[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
        assert f"http://127.0.0.1:{port} does not answer (ReadTimeoutError)" in refused(remote)


def test_credentials_and_endpoint_of_a_profile_are_found_too(
    remote: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunWriter.create(f"{remote}/a", info()).close()
    for name in server.environment():
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = eu-central-1\nendpoint_url = {server.endpoint}\n"
        f"aws_access_key_id = {OWNER.key}\naws_secret_access_key = {OWNER.secret}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert [found.name for _, found in list_runs(remote)] == ["a"]
    options = files.storage_options(remote)
    assert options is not None
    assert options["AWS_ENDPOINT_URL"] == server.endpoint
    assert options["AWS_REGION"] == "eu-central-1"
    assert options["AWS_ALLOW_HTTP"] == "true"
    assert open_run("a", store=remote).trajectories.collect().is_empty()


def test_a_renewed_session_is_used_from_the_next_commit_on(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds a run open is given new keys meanwhile; the old ones would not do any more."""
    writer = RunWriter.create(f"{remote}/a", info())
    run = open_run(f"{remote}/a")
    assert run.events.collect().is_empty()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")  # any option that differs
    writer.commit("events", events("one"))
    handle = run.snapshot()._handles["events"]
    assert handle is not None
    assert handle._storage_options is not None
    assert handle._storage_options["AWS_REGION"] == "eu-west-1"
    assert run.events.collect().height == 1


def test_no_secret_is_stored_or_shown(remote: str, server: S3Server) -> None:
    writer = RunWriter.create(f"{remote}/a", info())
    writer.commit("trajectories", trajectories(range(2)))
    run = open_run(writer.uri)
    shown = [
        repr(run), repr(run.info), repr(writer), run.trajectories.explain(), repr(run.snapshot()),
        str(run.trajectories.collect()),
        refused("s3://nowhere/x"), json.dumps(run.sql("SELECT * FROM trajectories").to_dicts(),
        default=str),
    ]  # fmt: skip
    client = server.client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=remote.removeprefix(f"s3://{BUCKET}/"))
    for each in listed["Contents"]:
        shown.append(
            client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read().decode("latin1")
        )
    assert any('"owner"' in text for text in shown)
    for text in shown:
        assert OWNER.secret not in text
        assert OWNER.key not in text


def test_without_boto3_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from rollart_flow.cli import main; sys.exit(main(['runs', '--store', 's3://bucket/x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "error: an s3:// store needs boto3; pip install 'rollart-flow[s3]'\n"


def test_the_shell_lists_shows_and_queries(remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    with RunWriter.create(f"{remote}/a", info()) as writer:
        writer.commit("trajectories", trajectories(range(3)))
    assert main(["runs", "--store", remote, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "a", "uri": f"{remote}/a", "status": "finished", "steps": 0}
    ]
    query = "SELECT count(*) AS n FROM trajectories"
    assert main(["query", f"{remote}/a", query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 3}]
    assert main(["runs", "--store", "s3://nowhere/x"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot list s3://nowhere/x: there is no")
    assert main(["runs", "--store", "gs://bucket/x"]) == 2


def test_doctor_says_whether_runs_can_go_to_a_bucket(
    remote: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(store: str) -> tuple[int, str, dict[str, object]]:
        code = main(["doctor", "--store", store, "--json"])
        said = capsys.readouterr().out
        return code, said, next(f for f in json.loads(said) if f["name"] == "s3")

    code, said, finding = found(remote)
    assert (code, finding["usable"], finding["version"]) == (0, True, "credentials: env")
    assert OWNER.secret not in said
    assert OWNER.key not in said
    code, _, finding = found("s3://nowhere/runs")
    assert (code, finding["usable"]) == (1, False)
    assert "there is no such bucket" in str(finding["hint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER.secret)
    code, _, finding = found(remote)
    assert (code, finding["usable"]) == (1, False)
    assert "no permission" in str(finding["hint"])


def test_the_lines_of_the_page_work(remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "s3.md").read_text()
    lines = [line for line in page.splitlines() if "--store s3://my-bucket/runs" in line]
    RunWriter.create(f"{remote}/mine", info("mine")).close()
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert {words[0] for words in commands} == {"doctor", "run", "query"}
    for words in commands:
        if words[0] == "run":
            assert load_pipeline(words[1], {})
        else:
            assert main([w.replace("s3://my-bucket/runs", remote) for w in words]) == 0
    assert "rows" in capsys.readouterr().out
