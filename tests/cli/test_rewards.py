"""`rollart reward serve`: a reward function behind a URL, in a process of its own."""

import asyncio
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from rollart_flow.serverless import CallPolicy, ServerlessReward
from tests.builders import TRAJECTORY
from tests.cli.shell import COMMAND, refused, rollart

ROOT = Path(__file__).parents[2]

MODULE = '''
def tokens(trajectory):
    """One point for each token."""
    return len(trajectory.token_ids), {"turns": len(trajectory.turns)}
'''


def test_a_function_of_the_current_folder_is_served_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def score(url: str) -> object:
        reward = ServerlessReward(url, CallPolicy(deadline_s=30.0))
        try:
            return await reward(TRAJECTORY)
        finally:
            await reward.close()

    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with subprocess.Popen(
        [*COMMAND, "reward", "serve", "my_rewards:tokens"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert asyncio.run(score(url)) == (3.0, {"turns": 1.0})
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exact_match", "'exact_match' is not module:function"),
        ("no_such_module:score", "module no_such_module cannot be imported: ModuleNotFoundError"),
        ("tests.rewards.functions:missing", "has no function 'missing'"),
    ],
)
def test_a_wrong_function_is_one_line(name: str, said: str) -> None:
    assert said in refused(rollart("reward", "serve", name))


def test_an_address_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = rollart("reward", "serve", "tests.rewards.functions:turns", "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}" in refused(said)
