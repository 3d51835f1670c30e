"""The names of `rollart_flow.rewards`, and what using one loads."""

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

from rollart_flow import rewards

HEAVY = ("ray", "torch", "httpx2", "polars", "pyarrow", "pydantic")


def test_every_exported_name_is_there() -> None:
    assert rewards.__all__ == [
        "HACK_PROMPT", "ChatCompletions", "Completes", "Judge", "Judgements", "Part",
        "RewardFunction", "Score", "code_tests", "completion_time", "compose",
        "environment_reward", "exact", "majority", "math_equal", "numeric", "process_reward",
        "regex", "watched",
    ]  # fmt: skip
    for name in rewards.__all__:
        found = getattr(rewards, name)
        assert found is not None
        assert not isinstance(found, ModuleType)
        assert name in dir(rewards)
    with pytest.raises(AttributeError, match="no attribute 'judgement'"):
        rewards.judgement  # noqa: B018  the access is what fails


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, json\n"
        "from rollart_flow.rewards import *\n"
        "Judge(url='http://localhost', model='m', prompt='{answer}')\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip
    assert json.loads(done.stdout) == []
