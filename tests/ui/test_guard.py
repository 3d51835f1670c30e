"""The guard: hosts, origins, methods and tokens that are admitted, and the headers of answers."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from tests.runs import small_run

TOKEN = "a-token-of-a-test"
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> RunCatalog:
    folder = Path(tmp_path_factory.mktemp("guard"))
    small_run(folder)
    return RunCatalog(store=str(folder))


def client(catalog: RunCatalog, readers: Readers, base: str = HERE) -> TestClient:
    return TestClient(ui_app(catalog, readers), base_url=base, follow_redirects=False)


@pytest.fixture
def local(catalog: RunCatalog) -> TestClient:
    return client(catalog, Readers.at("127.0.0.1", None))


@pytest.fixture
def remote(catalog: RunCatalog) -> TestClient:
    return client(catalog, Readers.at("0.0.0.0", TOKEN, ["box.example"]), "http://10.0.0.7:8000")


def test_this_machine_reads_without_a_token(local: TestClient) -> None:
    assert local.get("/api/runs").status_code == 200
    assert local.get("/run/small/step/3").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7", ""])
def test_a_name_that_was_rebound_to_loopback_is_refused(local: TestClient, host: str) -> None:
    assert local.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_a_page_of_another_site_reads_nothing(local: TestClient, headers: dict[str, str]) -> None:
    assert local.get("/api/runs", headers=headers).status_code == 403


def test_a_link_from_another_site_opens_a_page(local: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert local.get("/run/small", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_admitted(local: TestClient, method: str) -> None:
    for path in ("/api/runs", "/run/small", "/login"):
        assert local.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/runs", "/api/runs", "/static/main.js", "/static/none", "/x"])
def test_every_answer_forbids_scripts_and_frames_of_others(local: TestClient, path: str) -> None:
    headers = local.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_beyond_this_machine_only_the_token_opens_runs(remote: TestClient) -> None:
    assert remote.get("/api/runs").status_code == 401
    assert remote.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert remote.get("/api/runs", headers=bearer).status_code == 200
    assert remote.get("/runs").headers["location"] == "/login"
    assert remote.get("/api/runs", headers={"cookie": f"x={TOKEN}"}).status_code == 401


def test_an_address_with_the_token_becomes_a_cookie_that_no_script_reads(
    remote: TestClient,
) -> None:
    answer = remote.get(f"/run/small/step/3?token={TOKEN}&at=7")
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/small/step/3?at=7")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "httponly" in cookie.lower()
    assert remote.get("/api/runs").status_code == 200


def test_a_wrong_token_in_an_address_gives_no_cookie_and_leads_nowhere_else(
    remote: TestClient,
) -> None:
    answer = remote.get("//evil.example/x?token=wrong")
    assert "set-cookie" not in answer.headers
    assert not answer.headers.get("location", "").startswith("//")


def test_the_form_takes_the_token(remote: TestClient) -> None:
    assert "token" in remote.get("/login").text
    wrong = remote.post("/login", data={"token": "wrong"})
    assert "set-cookie" not in wrong.headers
    assert remote.post("/login", content=b"x" * 5000).status_code == 413
    assert remote.post("/login", data={"token": TOKEN}).headers["location"] == "/"
    assert remote.get("/api/run/small/about").status_code == 200


@pytest.mark.parametrize(("host", "status"), [("box.example", 200), ("evil.example", 421)])
def test_beyond_this_machine_known_names_are_admitted(
    remote: TestClient, host: str, status: int
) -> None:
    headers = {"host": host, "authorization": f"Bearer {TOKEN}"}
    assert remote.get("/api/runs", headers=headers).status_code == status


def test_the_settings_of_the_guard_show_no_token() -> None:
    readers = Readers.at("0.0.0.0", TOKEN)
    assert TOKEN not in repr(readers)
    assert readers.cookie not in repr(readers)
