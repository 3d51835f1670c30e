"""Settings from files and variables: which one wins, and what an error names."""

import json
from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.pipeline import load_pipeline
from rollart_flow.pipeline.layers import SettingsLayer, layer_of_file, layer_of_variables, merged
from tests.pipeline.parts import two_domains

TWO_DOMAINS = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
FILES = {
    "run.yaml": "alpha: 2\ntrain:\n  steps: 12\n  optimizer: {lr: 5.0e-4}\n",
    "run.toml": "alpha = 2\n[train]\nsteps = 12\noptimizer.lr = 5e-4\n",
    "run.json": '{"buffer.alpha": 2, "train": {"steps": 12, "optimizer": {"lr": 0.0005}}}',
}


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_a_file_says_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    pipeline = load_pipeline(TWO_DOMAINS, layers=[layer_of_file(path)]).pipeline
    train, optimizer = pipeline.train, pipeline.train.optimizer
    assert (pipeline.buffer.alpha, train.steps, optimizer.lr) == (2, 12, 5e-4)


def test_a_mapping_that_is_the_value_of_a_setting_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("tasks:\n  weights: {arithmetic: 3.0}\n")
    loaded = load_pipeline(TWO_DOMAINS, layers=[layer_of_file(path)])
    assert loaded.overrides == {"tasks.weights": json.dumps({"arithmetic": 3.0})}
    assert loaded.pipeline.tasks.weights == {"arithmetic": 3.0}


def test_a_file_loses_to_variables_and_variables_to_words_however_they_are_spelled() -> None:
    layers = [
        SettingsLayer("run.yaml", {"steps": "1", "alpha": "1", "epochs": "3"}),
        layer_of_variables({"ROLLART_SET_TRAIN__STEPS": "2", "ROLLART_SET_ALPHA": "2", "X": "1"}),
        SettingsLayer("", {"train.steps": "4"}),
    ]
    assert merged(two_domains(), layers) == {"train.steps": "4", "alpha": "2", "epochs": "3"}


def test_a_variable_finds_names_in_small_letters() -> None:
    layer = layer_of_variables({"ROLLART_SET_FROZENLAKE__SIZE": "8"})
    assert merged(two_domains(), [layer]) == {"frozenlake.size": "8"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"alpa": "1"}, "run.yaml: no setting 'alpa' (did you mean buffer.alpha?)"),
        ({"steps": "many"}, "run.yaml: train.steps should be a valid integer"),
        ({"train": '{"steps": -1}'}, "run.yaml: train.steps should be greater than or equal to"),
        ({"steps": "1", "train.steps": "2"}, "run.yaml: steps and train.steps are the same"),
    ],
)
def test_an_error_names_the_file_and_the_key(values: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        merged(two_domains(), [SettingsLayer("run.yaml", values)])
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.yaml", "a: [1", "is no YAML"),
        ("run.toml", "a = ", "is no TOML"),
        ("run.json", "[1]", "it holds no settings"),
        ("run.ini", "", "settings are read from files that end in .yaml"),
        ("none.yaml", None, "no such file of settings"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    name: str, text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError) as raised:
        layer_of_file(tmp_path / name)
    assert str(raised.value).startswith(str(tmp_path / name))
    assert said in str(raised.value)
