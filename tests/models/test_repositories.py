"""A repository of the Hub is read from the cache, and what is missing is said in one line."""

from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.pipeline import load_source
from rollart_flow.pipeline.loading import pipeline_in
from rollart_flow.runner.recorded import check_as_recorded, load_recorded
from rollart_flow.store import RunInfo

COMMIT = "0" * 40
PIPELINE = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake

policy = Policy.from_pretrained("org/tiny", engine="transformers")
rows = rollout(tasks(FrozenLake({shows}), group_size=4), policy)
steps = train(buffer(reward(rows), batch_size=4, alpha=1), policy, grpo(), steps=1)
pipeline = Pipeline("tiny", steps)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached(cache: Path, commit: str) -> Path:
    """Put a commit of the repository into the cache, as the newest one of its branch."""
    place = cache / "models--org--tiny"
    snapshot = place / "snapshots" / commit
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    materialize(Policy.tiny(hidden=16, heads=2), snapshot)
    return snapshot


def test_a_cached_repository_is_its_snapshot(cache: Path) -> None:
    snapshot = cached(cache, COMMIT)
    assert Policy.from_pretrained("org/tiny").located().path == str(snapshot)


def test_a_run_is_resumed_with_the_commit_that_it_recorded(cache: Path, tmp_path: Path) -> None:
    first = cached(cache, COMMIT)
    text = PIPELINE.format(shows="")
    made = load_source(text, "file.py").pipeline
    info = RunInfo("tiny", "tiny", made.seed, made.settings(), term=1)
    newer = cached(cache, "1" * 40)
    assert load_source(text, "file.py").pipeline.policy.path == str(newer)
    run = tmp_path / "tiny"
    run.mkdir()
    (run / "pipeline.py").write_text(text)
    again = load_recorded(str(run), info).pipeline
    assert again.policy.path == str(first)
    check_as_recorded(again, info)
    (run / "pipeline.py").write_text(text.replace('org/tiny"', 'org/tiny", revision="v2"'))
    with pytest.raises(SettingsError, match="revision v2"):
        load_recorded(str(run), info)


def test_what_to_download_is_said(cache: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        Policy.from_pretrained("org/tiny", revision="v2").located()
    assert str(refused.value) == (
        "policy: 'org/tiny' is neither a folder nor whole in the cache of huggingface_hub, and "
        "cannot be downloaded: HF_HUB_OFFLINE is set; where there is a network, call: "
        "hf download org/tiny --revision v2"
    )


def test_a_hub_that_cannot_be_reached_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("Got: ConnectError\nAn error happened while ...")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(SettingsError, match=r"downloaded: https://\S+ cannot be reached; where"):
        Policy.from_pretrained("org/tiny").located()


def test_a_folder_without_a_model_is_no_repository(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json"):
        Policy.from_pretrained(tmp_path).located()


def test_a_pipeline_file_looks_for_no_model_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def missing(repository: str, **_: object) -> None:
        looked.append(repository)
        raise LocalEntryNotFoundError("nothing here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", missing)
    text = PIPELINE.format(shows="")
    pipeline = pipeline_in(text, "file.py")
    assert not looked
    assert pipeline.policy.path == "org/tiny"
    with pytest.raises(SettingsError, match=r"^file\.py: policy: 'org/tiny' is neither"):
        load_source(text, "file.py")
    assert set(looked) == {"org/tiny"}
    materialize(Policy.tiny(hidden=16, heads=2), tmp_path / "model")
    loaded = load_source(text, "file.py", {"policy.path": str(tmp_path / "model")})
    assert loaded.pipeline.policy.path == str(tmp_path / "model")
    assert loaded.pipeline.rollout.policy == loaded.pipeline.policy


def test_a_model_is_checked_when_it_is_found(tmp_path: Path) -> None:
    materialize(Policy.tiny(hidden=16, heads=2), tmp_path / "model")
    text = PIPELINE.format(shows="visual=True")
    pipeline_in(text, "file.py")
    with pytest.raises(PipelineError, match="frozenlake shows images, but the policy"):
        load_source(text, "file.py", {"policy.path": str(tmp_path / "model")})
