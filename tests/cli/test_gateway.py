"""`rollart gateway`: wrong use is one line, and Ctrl-C ends a run that holds the calls."""

import json
import signal
import subprocess
from pathlib import Path

import openai

from tests.cli.shell import COMMAND, refused, rollart

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


def test_an_interrupt_ends_it_after_its_calls_are_committed(tmp_path: Path) -> None:
    options = ("--name", "mine", "--context", "256", "--max-tokens", "4", "--json")
    with subprocess.Popen(
        [*COMMAND, "gateway", "tiny", "--store", str(tmp_path), *options],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        said = json.loads("".join([*lines, "}"]))
        assert set(said) == {"chat", "responses", "messages", "google", "key", "run"}
        with openai.OpenAI(base_url=said["chat"], api_key=said["key"]) as client:
            messages = [{"role": "user", "content": "Hello."}]
            client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    runs = json.loads(rollart("runs", "--store", str(tmp_path), "--json").out)
    assert [(run["name"], run["status"]) for run in runs] == [("mine", "finished")]
    query = ("query", "mine", "select wire, stream from exchanges", "--json")
    assert json.loads(rollart(*query, "--store", str(tmp_path)).out) == [
        {"wire": "chat", "stream": False}
    ]
    shown = rollart("show", "mine", "--store", str(tmp_path))
    assert shown.code == 0
    assert "1 call;" in shown.out
