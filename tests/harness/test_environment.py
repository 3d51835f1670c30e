"""The environment of a program: a real box, and its one way out."""

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from rollart_flow import Harness
from rollart_flow.envs import SweSample
from rollart_flow.envs.workspace import Equipment
from rollart_flow.errors import EnvironmentFailedError, SandboxError
from rollart_flow.gateway.server.listening import PrivateFolder
from rollart_flow.harness.environment import AgentDomain, AgentEnvironment
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split, Task

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

ASKS = """
import os, sys, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/echo", data=sys.stdin.buffer.read() * 3000,
    headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as answer:
    print(len(answer.read()), os.environ["HOME"], os.getcwd(), os.environ["OPENAI_API_KEY"])
"""
VARIABLES = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}


class Echo(BaseHTTPRequestHandler):
    """Answers each request with its body, and notes the key."""

    keys: list[str]

    def do_POST(self) -> None:
        self.keys.append(self.headers["Authorization"])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a box"

    def log_message(self, format: str, *arguments: Any) -> None: ...


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    block_on_close = True


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[str]]]:
    """A socket that boxes may connect to, and the keys that came through it."""
    keys: list[str] = []
    handler = type("Handler", (Echo,), {"keys": keys})
    folder = PrivateFolder()
    with Server("", handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = folder.listen()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname(), keys
        finally:
            server.shutdown()
            thread.join()
            folder.remove()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SweSample:
    return SweSample(folder=str(tmp_path_factory.mktemp("swe")), per_package=1)


@pytest.fixture(scope="module")
def task(sample: SweSample) -> Task:
    return next(sample.tasks(Split.EVALUATION, 0))


def test_the_box_of_a_program_outlives_every_part_of_its_task(
    sample: SweSample, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Equipment]()

    def noted(equipment: Equipment, spec: SandboxSpec, parts: int = 1) -> SandboxSpec:
        asked.append(equipment)
        raise SandboxError("seen")

    harness = Harness("bash", timeout_s=7200.0, judge_timeout_s=1000.0)
    environment = AgentDomain(sample, harness).make()
    with monkeypatch.context() as patched:
        patched.setattr(Equipment, "added", noted)
        with pytest.raises(SandboxError, match="seen"):
            environment.reset(0, task.payload)
    (equipment,) = asked
    assert equipment.added(SandboxSpec()).limits.lifetime_s >= 7200 + 1000 + 60
    assert equipment.added(SandboxSpec(), 3).limits.lifetime_s >= 3 * (7200 + 1000 + 60)


def started(sample: SweSample, task: Task, socket: str, code: str) -> AgentEnvironment:
    harness = Harness("command", command=["python3", "-c", code], wire="chat", variables=VARIABLES)
    environment = AgentDomain(sample, harness, socket).make()
    instruction, _ = environment.reset(0, task.payload)
    assert "Find the fault" in instruction
    return environment


def ran(environment: AgentEnvironment, key: str = "a-key") -> dict[str, Any]:
    *_, info = environment.step(json.dumps({"run": key}))
    return dict(info)


def test_a_program_reaches_the_gateway_by_loopback_and_nothing_else(
    sample: SweSample, task: Task, gateway: tuple[str, list[str]]
) -> None:
    socket, keys = gateway
    environment = started(sample, task, socket, ASKS)
    info = ran(environment)
    length = 3000 * len(environment.reset(0, task.payload)[0].encode())
    environment.close()
    assert info["said"] == f"{length} /tmp/agent /work ***", "the key is not in what is reported"
    assert (info["exit_code"], info["killed"]) == (0, "")
    assert keys == ["Bearer a-key"]


def test_the_exit_code_and_the_last_words_of_a_program_are_reported(
    sample: SweSample, task: Task, gateway: tuple[str, list[str]]
) -> None:
    environment = started(sample, task, gateway[0], "import sys; sys.exit('no\\nmodel')")
    info = ran(environment)
    environment.close()
    assert (info["exit_code"], info["said"]) == (1, "no model")


def test_what_a_program_leaves_is_judged_in_a_box_without_the_gateway(
    sample: SweSample, task: Task, gateway: tuple[str, list[str]]
) -> None:
    code = "open('marks.py', 'a').write('\\nassert False\\n')"
    environment = started(sample, task, gateway[0], code)
    ran(environment)
    judge = json.dumps({"judge": {"last": False, "said": ["I run git reflog."]}})
    _, reward, terminated, _, info = environment.step(judge)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert "+assert False" in str(info["diff"])
    assert str(info["suspicions"]).startswith("['git_plumbing: ")
    with pytest.raises(EnvironmentFailedError, match="no attempt is open"):
        environment.step(judge)


def test_a_program_that_is_not_there_has_an_exit_code(
    sample: SweSample, task: Task, gateway: tuple[str, list[str]]
) -> None:
    harness = Harness("command", command=["no-agent"], wire="chat")
    environment = AgentDomain(sample, harness, gateway[0]).make()
    environment.reset(0, task.payload)
    info = ran(environment)
    environment.close()
    assert info["exit_code"] == 127
    assert info["said"].startswith("no-agent: ")
