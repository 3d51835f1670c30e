"""A repository of the Hub is read from the cache, and what is missing is said in one line."""

from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import Policy

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_cached_repository_is_its_snapshot(cache: Path) -> None:
    place = cache / "models--org--tiny"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"")
    assert Policy.from_pretrained("org/tiny").path == str(snapshot)


def test_what_to_download_is_said(cache: Path) -> None:
    with pytest.raises(SettingsError, match=r"'org/tiny'.*hf download org/tiny --revision v2") as e:
        Policy.from_pretrained("org/tiny", revision="v2")
    assert "\n" not in str(e.value)


def test_a_folder_without_a_model_is_no_repository(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json"):
        Policy.from_pretrained(tmp_path)
