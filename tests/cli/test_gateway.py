"""`rollart gateway`: wrong use is one line, and Ctrl-C ends a run that holds the calls."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from rollart_flow.store import Run
from tests.cli.shell import COMMAND, refused, rollart
from tests.gateway.sdks import openai

ROOT = Path(__file__).parents[2]


def test_wrong_use(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path))
    assert "'unknown' is no run in" in refused(rollart("gateway", "unknown", *store))
    assert "policy.engine='vlm'" in refused(
        rollart("gateway", "tiny", "--engine", "vlm", "--context", "64", *store)
    )
    assert "--port" in refused(rollart("gateway", "tiny", "--port", "70000", *store))
    assert "--context" in refused(rollart("gateway", "tiny", "--context", "1", *store))
    assert not [*tmp_path.iterdir()]


@contextmanager
def gateway(policy: str, store: Path) -> Iterator[dict[str, Any]]:
    """A gateway that is interrupted at the end; what it says at its start."""
    options = ("--name", "mine", "--context", "256", "--max-tokens", "4", "--json")
    with subprocess.Popen(
        [*COMMAND, "gateway", policy, "--store", str(store), *options],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        yield json.loads("".join([*lines, "}"]))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_an_interrupt_ends_it_after_its_calls_are_committed(tmp_path: Path) -> None:
    with gateway("tiny", tmp_path) as said:
        assert set(said) == {"chat", "responses", "messages", "google", "key", "run"}
        with openai.OpenAI(base_url=said["chat"], api_key=said["key"]) as client:
            messages = [{"role": "user", "content": "Hello."}]
            client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
    runs = json.loads(rollart("runs", "--store", str(tmp_path), "--json").out)
    assert [(run["name"], run["status"]) for run in runs] == [("mine", "finished")]
    query = ("query", "mine", "select wire, stream from exchanges", "--json")
    assert json.loads(rollart(*query, "--store", str(tmp_path)).out) == [
        {"wire": "chat", "stream": False}
    ]
    shown = rollart("show", "mine", "--store", str(tmp_path))
    assert shown.code == 0
    assert "1 call;" in shown.out


def test_it_serves_the_newest_version_of_a_pipeline_s_run(
    finished_run: Run, tmp_path: Path
) -> None:
    shutil.copytree(finished_run.uri, tmp_path / "small")
    with gateway("small", tmp_path) as said, urlopen(models_of(said)) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["policy"]
    query = ("query", "mine", "select count(*) as calls from exchanges", "--json")
    assert json.loads(rollart(*query, "--store", str(tmp_path)).out) == [{"calls": 0}]


def models_of(said: dict[str, Any]) -> Request:
    """The request of a gateway's models."""
    return Request(f"{said['chat']}/models", headers={"Authorization": f"Bearer {said['key']}"})
