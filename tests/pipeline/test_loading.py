"""A pipeline file is run as a module; what goes wrong in it becomes one line with its place."""

import pickle
import sys
from pathlib import Path

import pytest

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline import LoadedPipeline, load_pipeline, load_source
from rollart_flow.schema import delta_schema

TWO_DOMAINS = Path(__file__).parents[2] / "pipelines" / "two_domains.py"

SMALL = """
from dataclasses import dataclass
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake

@dataclass(frozen=True)
class Lake(FrozenLake):
    name = "pond"

def score(trajectory):
    return 1.0

policy = Policy.tiny()
scored = reward(rollout(tasks(Lake()), policy), score)
pipeline = Pipeline("small", train(buffer(scored), policy, grpo(), steps=1))
"""


def written(folder: Path, source: str) -> str:
    path = folder / "mine.py"
    path.write_text(source)
    return str(path)


def scoring(loaded: LoadedPipeline) -> object:
    assert loaded.pipeline.reward is not None
    return loaded.pipeline.reward.fn


def test_the_pipeline_of_the_demo_loads() -> None:
    loaded = load_pipeline(TWO_DOMAINS)
    assert loaded.pipeline.name == "two-domains"
    assert loaded.source_text == TWO_DOMAINS.read_text()
    assert loaded.path == str(TWO_DOMAINS)


def test_overrides_are_applied_and_remembered() -> None:
    loaded = load_pipeline(TWO_DOMAINS, {"alpha": "0", "steps": "2"})
    assert loaded.pipeline.buffer.schedule.name == "sync_plus"
    assert loaded.pipeline.train.steps == 2
    assert loaded.overrides == {"alpha": "0", "steps": "2"}
    with pytest.raises(SettingsError, match="no setting 'alpa'"):
        load_pipeline(TWO_DOMAINS, {"alpa": "0"})


def test_a_file_may_define_its_own_domain_and_reward(tmp_path: Path) -> None:
    before = set(sys.modules)
    loaded = load_pipeline(written(tmp_path, SMALL))
    assert loaded.pipeline.tasks.domain_names == ("pond",)
    assert scoring(loaded) is not None
    assert "rollart_pipeline" not in set(sys.modules) - before


def test_what_a_file_defines_travels_by_value() -> None:
    from ray import cloudpickle

    sent = cloudpickle.dumps(scoring(load_source(SMALL, "mine.py")))
    assert pickle.loads(sent)(None) == 1.0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pipeline = (", r"mine.py:1: '\(' was never closed$"),
        ("x = 1\npipelin = Pipelin()", r"mine.py:2: NameError: name 'Pipelin' is not defined"),
        ("import nothing_of_this_name", r"mine.py:1: ModuleNotFoundError: .*nothing_of_this_name"),
        ("from rollart_flow import task", r"mine.py:1: ImportError: .*'task'"),
        ("x = 1", r"mine.py: no `pipeline` at module level"),
        ("pipeline = 3", r"mine.py: `pipeline` is a int, not a Pipeline"),
        (
            "from rollart_flow import tasks\nfrom rollart_flow.envs import FrozenLake\n\n"
            "def make():\n    return tasks(FrozenLake(), group_size=0)\n\nmake()",
            r"mine.py:5: tasks: group_size should be",
        ),
        ("raise ValueError('two\\nlines')", r"mine.py:1: ValueError: two$"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        load_pipeline(written(tmp_path, source))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such pipeline file"):
        load_pipeline(tmp_path / "none.py")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="cannot be read"):
        load_pipeline(tmp_path / "bytes.py")
    with pytest.raises(PipelineError, match="cannot be read"):
        load_pipeline(tmp_path)


def test_a_cached_function_of_a_file_travels_by_value_and_one_of_a_module_by_name() -> None:
    from ray import cloudpickle

    cached = "from functools import cache\ncached = cache(lambda number: 2.0 * number)\n"
    source = cached + SMALL.replace("return 1.0", "return cached(3)")
    judge = scoring(load_source(source, "mine.py"))
    sent = pickle.loads(cloudpickle.dumps(judge))
    assert sent(None) == 6.0
    assert sent.__globals__["cached"].cache_info().currsize == 1
    assert pickle.loads(pickle.dumps(delta_schema)) is delta_schema
