"""What `import rollart_flow` and importing a pipeline file load, and which names it exports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rollart_flow

ROOT = Path(__file__).parent.parent
HEAVY = ("ray", "torch", "vllm", "transformers", "megatron")
CODES = (
    "import rollart_flow",
    "from rollart_flow import *",
    "import runpy; runpy.run_path('pipelines/two_domains.py')",
    "from rollart_flow.pipeline import load_pipeline\n"
    "load_pipeline('pipelines/two_domains.py', {'alpha': '2'}).pipeline.plan()",
    "from rollart_flow.cli import main; main(['plan', 'pipelines/two_domains.py'])",
    "from rollart_flow.cli import main\n"
    "main(['plan', 'pipelines/two_domains.py', '-s', 'policy.engine=vllm'])",
    "from rollart_flow.cli import main\n"
    "main(['plan', 'pipelines/two_domains.py', '-s', 'train.backend=megatron'])",
    "from rollart_flow.cli import main; main(['doctor'])",
    "import runpy; runpy.run_path('pipelines/scenario.py')",
    "from rollart_flow.serverless import *",
    "from rollart_flow.cli import main\n"
    "main(['simulate', 'pipelines/scenario.py', '--steps', '1', '-S', 'one_off'])",
)


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running some code."""
    report = "import json, sys; print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Top-level modules that are loaded after each of `CODES`, which one interpreter runs in turn:
    the next one finds nothing heavy either, or the one before has failed already.
    """
    run = "import json, sys\nfound = {}\nfor code in json.loads(sys.argv[1]):\n    exec(code, {})\n"
    report = "    found[code] = [m.split('.')[0] for m in sys.modules]\nprint(json.dumps(found))"
    done = subprocess.run(
        [sys.executable, "-c", run + report, json.dumps(CODES)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return {code: set(names) for code, names in found.items()}


@pytest.mark.parametrize("code", CODES)
def test_nothing_heavy_is_loaded(loaded: dict[str, set[str]], code: str) -> None:
    assert not loaded[code] & set(HEAVY)


def test_serverless_rewards_load_no_transports_library() -> None:
    code = "from rollart_flow.serverless import *; ServerlessReward('lambda://name')"
    assert not loaded_after(code) & {*HEAVY, "boto3", "httpx2", "starlette", "uvicorn"}


def test_importing_the_library_alone_loads_no_dependency() -> None:
    assert not loaded_after("import rollart_flow") & {*HEAVY, "polars", "pyarrow", "pydantic"}


def test_composing_a_pipeline_loads_no_library_of_tables_and_tensors() -> None:
    loaded = loaded_after("from rollart_flow import Pipeline, rollout, tasks")
    assert not loaded & {*HEAVY, "asyncio", "deltalake", "numpy", "polars", "pyarrow", "ssl"}


def test_exported_names_are_these() -> None:
    assert rollart_flow.__all__ == [
        "Harness", "Pipeline", "Policy", "Secret", "buffer", "errors", "evaluate", "export",
        "export_data", "filter", "import_conversations", "mix", "open_run", "rescore", "reward",
        "rollout", "stored", "tasks", "train",
    ]  # fmt: skip
    for name in rollart_flow.__all__:
        assert getattr(rollart_flow, name) is not None
        assert name in dir(rollart_flow)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pipelin'"):
        rollart_flow.pipelin  # noqa: B018  the access is what fails
