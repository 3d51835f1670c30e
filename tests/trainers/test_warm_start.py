"""A format warm start teaches how an action is written, and nothing about which one is right."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms.base import Tokens
from rollart_flow.envs import FrozenLake
from rollart_flow.envs.examples import ExampleSettings
from rollart_flow.errors import (
    EnvironmentFailedError,
    EnvironmentTimeoutError,
    SettingsError,
    TrainerError,
)
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.trainers.warm_start import IMITATION, warm_start
from rollart_flow.weights import fingerprint
from tests.models.loaded import load_model
from tests.trainers.corridors import ACTIONS, AwkwardCorridors, Corridors, Mute
from tests.trainers.mixtures import SERVED, write_mixture

HERE = ExampleSettings(isolated=False)
"""In a thread of this process, which starts faster than a process."""


def new_folder(place: Path, *, max_context: int = 64) -> tuple[Path, TextCodec]:
    """A tiny policy at version 0."""
    materialize(Policy.tiny(hidden=16, layers=1, heads=2, max_context=max_context), place)
    return place, load_codec(place)


def next_token(folder: Path, chain: tuple[int, ...]) -> torch.Tensor:
    """Probabilities of the token after a chain, [vocabulary]."""
    model: Qwen3 = load_model(folder)
    with torch.no_grad():
        return torch.softmax(model.logits(model(torch.tensor([chain])))[0, -1], -1)


@pytest.mark.parametrize(
    ("wrong", "isolated"),
    [("hang", True), ("hang", False), ("fail", False), ("fail", True), ("crash", True)],
)
def test_an_environment_that_goes_wrong_costs_an_episode_and_not_the_warm_start(
    wrong: str, isolated: bool, tmp_path: Path
) -> None:
    folder, codec = new_folder(tmp_path / "model")
    once = tmp_path / "once"
    domain = AwkwardCorridors(wrong=wrong, place=str(once))
    settings = ExampleSettings(limit_s=1.0, isolated=isolated)
    losses = warm_start(folder, [domain], codec, steps=2, seed=0, episodes=4, settings=settings)
    assert len(losses) == 2
    assert (int(once.read_text()) == os.getpid()) is not isolated


def test_an_environment_that_cannot_be_made_in_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollart_flow.envs.examples.START_S", 1.0)
    folder, codec = new_folder(tmp_path / "model")
    domain, settings = AwkwardCorridors(wrong="hang for ever"), ExampleSettings(limit_s=1.0)
    with pytest.raises(EnvironmentTimeoutError, match=r"^Corridor\.make: no answer within 1 s"):
        warm_start(folder, [domain], codec, steps=1, seed=0, settings=settings)


def test_it_teaches_the_format_and_leaves_the_choice_open(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    losses = warm_start(
        folder, [Corridors()], codec, steps=40, seed=0, episodes=24, lr=1e-2, settings=HERE
    )
    assert len(losses) == 40
    assert losses[0] > 2.0
    assert losses[-1] < 0.7  # half of ln 3 and some: a word of three, and then the stop token
    shown = codec.encode_observation("turn 4 2", first=True)
    words = {word: codec.encode(word)[0] for word in (*ACTIONS, "right")}
    chances = next_token(folder, shown)
    for word in ACTIONS:
        assert 0.15 < float(chances[words[word]]) < 0.6
    assert float(chances[words["right"]]) < 0.05
    stop = next_token(folder, (*shown, words["left"]))
    assert float(stop[codec.stop_token_ids[0]]) > 0.9


def test_a_policy_that_sees_is_shown_the_images_of_the_episodes(tmp_path: Path) -> None:
    materialize(Policy.tiny(images=True, hidden=16, layers=1, heads=2), tmp_path / "model")
    codec, before = load_codec(tmp_path / "model"), load_folder(tmp_path / "model")[1]
    lake = FrozenLake(visual=True, tile_pixels=8, size=2, max_turns=2, random_maps=True)
    losses = warm_start(
        tmp_path / "model", [lake], codec, steps=12, seed=0, episodes=8, lr=1e-2, settings=HERE
    )
    assert losses[0] > 2.0
    assert losses[-1] < losses[0] - 1.0
    after = load_folder(tmp_path / "model")[1]
    for tower in ("visual.patch_embed.proj.weight", "model.embed_tokens.weight"):
        assert not torch.equal(before[tower], after[tower]), tower


def test_it_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    prints = []
    for number, seed in enumerate((3, 3, 4)):
        folder, codec = new_folder(tmp_path / str(number))
        settings = ExampleSettings(isolated=number == 1)
        warm_start(folder, [Corridors()], codec, steps=2, seed=seed, episodes=4, settings=settings)
        prints.append((folder / "model.safetensors").read_bytes())
    assert prints[0] == prints[1] != prints[2]


def test_each_argument_matters(tmp_path: Path) -> None:
    found = set()
    changes: list[dict[str, Any]] = [{}, {"episodes": 5}, {"lr": 1e-2}, {"steps": 3}]
    for number, change in enumerate(changes):
        folder, codec = new_folder(tmp_path / str(number))
        arguments = {"steps": 2, "seed": 0, "episodes": 4, **change}
        warm_start(folder, [Corridors()], codec, **arguments, settings=HERE)
        found.add(fingerprint(load_folder(folder)[1]))
    assert len(found) == 4


def test_only_the_weights_of_the_folder_change(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    domains = [Corridors(), Corridors(max_turns=1)]
    warm_start(folder, domains, codec, steps=1, seed=0, episodes=2, settings=HERE)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == ["model.safetensors"]


def test_a_mixture_is_taught_too(tmp_path: Path) -> None:
    write_mixture(tmp_path / "model", SERVED)
    before = load_folder(tmp_path / "model")[1]
    codec = load_codec(tmp_path / "model")
    losses = warm_start(
        tmp_path / "model", [Corridors()], codec, steps=12, seed=0, episodes=8, settings=HERE
    )
    assert losses[-1] < losses[0] - 1
    after = load_folder(tmp_path / "model")[1]
    assert before.keys() == after.keys()
    changed = {name for name, tensor in after.items() if not tensor.equal(before[name])}
    assert changed == before.keys(), "every expert has state"


def test_a_dtype_stays(tmp_path: Path) -> None:
    from rollart_flow.models.folder import save_folder
    from rollart_flow.models.tokenizer import tokenizer_files

    folder, codec = new_folder(tmp_path / "model")
    config, tensors = load_folder(folder)
    rounded = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_folder(tmp_path / "half", config, rounded, tokenizer_files(folder))
    half = tmp_path / "half"
    warm_start(half, [Corridors()], codec, steps=1, seed=0, episodes=2, settings=HERE)
    taught = load_folder(tmp_path / "half")[1]
    assert {tensor.dtype for tensor in taught.values()} == {torch.bfloat16}
    assert fingerprint(taught) != fingerprint(rounded)


def test_an_environment_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    before = (folder / "model.safetensors").read_bytes()
    domains = [Corridors(), Corridors(fails=True)]
    with pytest.raises(EnvironmentFailedError, match=r"5 episodes of domain .*no action; mend it"):
        warm_start(folder, domains, codec, steps=1, seed=0, settings=HERE)
    assert (folder / "model.safetensors").read_bytes() == before


def test_weights_in_shards_are_refused(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    with pytest.raises(TrainerError, match="not shards"):
        warm_start(folder, [Corridors()], codec, steps=1, seed=0, episodes=1)


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model", max_context=8)
    with pytest.raises(SettingsError, match="mute"):
        warm_start(folder, [Corridors(), Mute()], codec, steps=1, seed=0)
    with pytest.raises(SettingsError, match="at least one domain"):
        warm_start(folder, [], codec, steps=1, seed=0)
    with pytest.raises(SettingsError, match="steps=0"):
        warm_start(folder, [Corridors()], codec, steps=0, seed=0)
    with pytest.raises(SettingsError, match="max_context"):
        warm_start(folder, [Corridors()], codec, steps=1, seed=0, settings=HERE)


def test_the_loss_is_the_negative_log_likelihood() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    found = IMITATION.token_loss(Tokens(logprobs, torch.zeros(2), torch.ones(2)))
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(found.loss, -logprobs)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, -1.0]
    assert not found.clipped.any()


def test_every_trajectory_counts_whatever_its_reward() -> None:
    found = IMITATION.advantages(pa.table({"reward": [0.0, None, 7.0]}))
    assert [value.tolist() for value in found.values] == [[1.0]] * 3
    assert not IMITATION.needs_reference
