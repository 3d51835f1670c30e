"""`rollart ui`: the address that it prints, whom it admits, and how it ends."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from rollart_flow.ui.app import STATIC
from tests.cli.shell import COMMAND, refused, rollart
from tests.runs import small_run

VARIABLE = "ROLLART_TEST_UI_TOKEN"


@contextmanager
def served(*arguments: str, end: signal.Signals = signal.SIGINT) -> Iterator[str]:
    """The line that `rollart ui` prints; its process has to end well after Ctrl-C."""
    command = [*COMMAND, "ui", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(end)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def answer(url: str, **headers: str) -> object:
    with urlopen(Request(url, headers=headers)) as response:
        return json.loads(response.read())


def test_it_serves_the_runs_of_a_store_until_ctrl_c(tmp_path: Path) -> None:
    small_run(tmp_path)
    with served("--store", str(tmp_path)) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        listed = answer(f"{url}api/runs")
        assert isinstance(listed, dict)
        assert [run["name"] for run in listed["runs"]] == ["small"]
        with urlopen(url) as page:
            assert page.read() == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_demonstration_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with served("--demo", end=end) as url:
        listed = answer(f"{url}api/runs")
        assert isinstance(listed, dict)
        assert {run["name"] for run in listed["runs"]} == {"demo", "fork"}
        assert len(list(tmp_path.glob("rollart-demo-*"))) == 1
    assert not list(tmp_path.glob("rollart-demo-*"))


def test_beyond_this_machine_the_address_has_a_token(tmp_path: Path) -> None:
    small_run(tmp_path)
    with served(str(tmp_path / "small"), "--host", "0.0.0.0") as url:
        address, token = url.split("?token=")
        assert len(token) >= 43
        local = address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(HTTPError) as wrong:
            answer(f"{local}api/runs")
        wrong.value.close()
        assert wrong.value.code == 401
        assert answer(f"{local}api/runs", Authorization=f"Bearer {token}")


def test_a_token_of_a_variable_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "held-by-the-environment")
    with served("--store", str(tmp_path), "--token-variable", VARIABLE) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        bearer = "Bearer held-by-the-environment"
        listed = answer(f"{url}api/runs", Authorization=bearer)
        assert listed == {"title": str(tmp_path), "runs": [], "more": False} | {
            "query": listed["query"] if isinstance(listed, dict) else None
        }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing-here",), "no run 'nothing-here'"),
        (("--demo", "a"), "--demo shows its own run"),
        (("--token-variable", VARIABLE), f"variable {VARIABLE} is not set"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--token-variable", VARIABLE, "--unsafe-without-token"), "one of the two"),
    ],
)
def test_wrong_use_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    store = () if "--demo" in arguments else ("--store", str(tmp_path))
    assert said in refused(rollart("ui", *arguments, *store))
