"""A run is resumed with what it was made with, or it is said what differs."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.recorded import check_as_recorded
from rollart_flow.store import RunInfo
from tests.runner.world import source


def made(folder: Path, *edits: tuple[str, str]) -> Pipeline:
    """A pipeline whose file reads what may have changed since it ran."""
    text = source(folder)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return load_source(text, folder / "coins.py").pipeline


def recorded(pipeline: Pipeline, term: int = 1) -> RunInfo:
    return RunInfo("coins", "coins", pipeline.seed, pipeline.settings(), term=term)


def test_what_is_built_again_is_accepted(tmp_path: Path) -> None:
    info = recorded(made(tmp_path))
    check_as_recorded(made(tmp_path), RunInfo.from_json(info.to_json()))
    as_script = info.to_json().replace("rollart_pipeline:", "__main__:")
    check_as_recorded(made(tmp_path), RunInfo.from_json(as_script))


WIDER = ("hidden=32", "hidden=48")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (WIDER, r"gives policy\.hidden = 48, but the run was made with 32; restore"),
        (
            ("batch_size=8", "batch_size=16"),
            r"gives buffer\.batch_size = 16, but the run was .* 8;",
        ),
        (("steps, scores)", "steps, scores, seed=7)"), "gives seed = 7, but the run was .* 0;"),
        (
            ("tokens_seen)", "lambda t: 1.0)"),
            r"gives reward\.fn = '.*<lambda>', .* '.*tokens_seen'",
        ),
    ],
)
def test_what_differs_is_named(tmp_path: Path, edit: tuple[str, str], said: str) -> None:
    info = recorded(made(tmp_path))
    with pytest.raises(SettingsError, match=said) as caught:
        check_as_recorded(made(tmp_path, edit), info)
    assert "\n" not in str(caught.value)


def test_of_an_earlier_version_the_policy_is_compared_and_what_it_lacks_is_not(
    tmp_path: Path,
) -> None:
    info = recorded(made(tmp_path), term=0)
    check_as_recorded(made(tmp_path, ("batch_size=8", "batch_size=16")), info)
    with pytest.raises(SettingsError, match="hidden"):
        check_as_recorded(made(tmp_path, WIDER), info)
    check_as_recorded(made(tmp_path, WIDER), replace(info, settings={"policy": {}}))
