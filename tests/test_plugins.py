"""An installed package adds one variant of each family, and a run uses all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_variants import FAMILIES

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "tests" / "plugins"
"""A folder of installed packages: modules with their `.dist-info`."""

PIPELINE = """
from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import tiny

policy = Policy.tiny(hidden=32, engine="tiny")
coins = tasks("tiny(coins=3)", group_size=4)
scored = reward(rollout(coins, policy, max_tokens=4, context="tiny"), "tiny://here")
batches = buffer(scored, batch_size=8, schedule="tiny")
steps = train(batches, policy, tiny(), steps=2, backend="tiny", weights="tiny")
scores = evaluate(policy, "tiny", every=2, episodes=2, max_tokens=4)
pipeline = Pipeline("tiny", steps, scores, trackers=["tiny"])
"""


COMMAND = "import sys; from rollart_flow.cli import main; sys.exit(main())"
PLANS = """
import json, sys
from dataclasses import asdict
from tests.cli.shell import rollart

plans = [rollart("plan", "pipelines/two_domains.py", "-s", setting) for setting in sys.argv[1:]]
print(json.dumps([asdict(said) for said in plans]))
"""


def rollart(
    notes: Path, *arguments: str, plugins: bool = True, code: str = COMMAND
) -> tuple[int, str]:
    """Exit code of a command, or of other code, and all that it printed."""
    path = [str(ROOT), str(PLUGINS)] if plugins else [str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "ROLLART_TINY_USED": str(notes),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.whole)])
def test_a_run_uses_the_variants_of_a_package(tmp_path: Path, executor: str) -> None:
    notes, file = tmp_path / "notes", tmp_path / "coins.py"
    file.write_text(PIPELINE)
    options = ("--executor", executor, "--store", str(tmp_path / "runs"))
    code, said = rollart(notes, "run", str(file), *options)
    assert code == 0, said
    assert set(notes.read_text().splitlines()) == {
        "engine", "trainer", "weight servers started", "weights", "weight servers closed",
        "reward transport", "environment", "schedule", "loss", "context", "tracker",
    }  # fmt: skip


def test_a_variant_is_refused_where_its_package_is_not_installed(tmp_path: Path) -> None:
    known = {
        "policy.engine=tiny": "policy.engine='tiny': expected one of embedded, transformers, vllm",
        "train.backend=tiny": "train.backend='tiny': expected one of embedded, fsdp2, megatron",
        "train.weights=tiny": "train.weights='tiny': expected one of ipc, local, mooncake, nccl",
    }
    code, said = rollart(tmp_path / "notes", *known, code=PLANS)
    assert code == 0, said
    assert [plan["code"] for plan in json.loads(said)] == [0, 0, 0]
    code, said = rollart(tmp_path / "notes", *known, plugins=False, code=PLANS)
    assert code == 0, said
    for plan, line in zip(json.loads(said), known.values(), strict=True):
        assert plan["code"] == 2
        assert line in plan["err"]


def played(notes: Path, program: str) -> str:
    """Errors of a program that runs with the package."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(PLUGINS))),
            "ROLLART_TINY_USED": str(notes),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_a_sandbox_of_a_package_is_asked_for_a_box(tmp_path: Path) -> None:
    program = (
        "import asyncio; from rollart_flow.sandbox.registry import create_sandbox; "
        "asyncio.run(create_sandbox(variant='tiny'))"
    )
    assert "SandboxError: the box is too tiny" in played(tmp_path / "notes", program)
    assert (tmp_path / "notes").read_text() == "sandbox\n"


def test_an_agent_of_a_package_is_launched(tmp_path: Path) -> None:
    program = (
        "from rollart_flow import Harness; from rollart_flow.harness.profile import LaunchSite; "
        "site = LaunchSite(**dict.fromkeys(LaunchSite.__slots__, 'a')); "
        "assert Harness('tiny').profile().launch(site).command == ('echo', 'a')"
    )
    assert played(tmp_path / "notes", program) == ""
    assert (tmp_path / "notes").read_text() == "agent\n"


def test_a_wire_of_a_package_answers_at_its_path(tmp_path: Path) -> None:
    program = (
        "from rollart_flow.gateway.core.calls import AnswerEnd, ModelAnswer; "
        "from rollart_flow.gateway.wires.registry import find_route; "
        "from rollart_flow.types import Action; "
        "wire = find_route('POST', '/v1/tiny/ask', {}).wire; "
        "import json; body = json.dumps({'messages': [{'role': 'user', 'content': 'a'}]}); "
        "call = wire.parse('/v1/tiny/ask', {}, body.encode()); "
        "counts = dict(prompt_tokens=1, cached_tokens=0, answer_tokens=1); "
        "said = ModelAnswer(answer_id='a', action=Action('b'), end=AnswerEnd.STOP, **counts); "
        "assert (call.wire, wire.answer(said, call)['id']) == ('tiny', 'chatcmpl-a')"
    )
    assert played(tmp_path / "notes", program) == ""
    assert (tmp_path / "notes").read_text() == "wire\n"


def test_the_package_adds_to_every_family() -> None:
    declared = (PLUGINS / "rollart_tiny-1.0.dist-info" / "entry_points.txt").read_text()
    assert declared.count("\ntiny = ") == len(FAMILIES)


def test_doctor_reports_the_packages_of_added_variants(tmp_path: Path) -> None:
    code, said = rollart(tmp_path / "notes", "doctor", "--store", str(tmp_path), "--json")
    assert code == 0, said
    found = {finding["name"]: finding for finding in json.loads(said)}
    assert found["tiny"] == {
        "name": "tiny",
        "version": "1.0",
        "usable": True,
        "hint": "trains very little",
    }
