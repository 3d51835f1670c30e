"""A format warm start teaches how an action is written, and nothing about which one is right."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms.base import Tokens
from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError, SettingsError, TrainerError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy, load_codec, materialize
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.models.tokenizer import TextCodec
from rollart_flow.trainers.warm_start import IMITATION, warm_start
from rollart_flow.types import Split, Task
from rollart_flow.weights import fingerprint
from tests.models.loaded import load_model
from tests.trainers.mixtures import SERVED, write_mixture

ACTIONS = ("left", "down", "up")
"""Three of the four words that a tiny policy's tokenizer knows: `right` is never shown."""


class Corridor(Environment):
    """Shows its seed's last digit and the turn; ends after as many turns as the task says."""

    inline = True
    version = "corridor/1"

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self._left = int(task)
        self._seed = seed % 10
        return f"turn {self._seed} {self._left}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action not in ACTIONS:
            raise EnvironmentFailedError(f"corridor: {action!r} is no action")
        self._left -= 1
        return f"turn {self._seed} {self._left}", 0.0, self._left == 0, False, {}


@dataclass(frozen=True)
class Corridors(Domain):
    """Corridors of 1 to 3 turns."""

    name: ClassVar[str] = "corridors"
    environment: ClassVar[type[Environment]] = Corridor
    max_turns: int = 3
    fails: bool = False

    def make(self) -> Environment:
        return Corridor()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        random = Random(seed)
        return (Task(f"corridors/{n}", self.name, str(random.randint(1, 3))) for n in count())

    def example_action(self, task: Task, random: Random) -> str:
        return "crash" if self.fails else random.choice(ACTIONS)


class Mute(Corridors):
    """A domain that does not say what an action looks like."""

    name: ClassVar[str] = "mute"
    example_action = Domain.example_action


def new_folder(place: Path, *, max_context: int = 64) -> tuple[Path, TextCodec]:
    """A tiny policy at version 0."""
    materialize(Policy.tiny(hidden=16, layers=1, heads=2, max_context=max_context), place)
    return place, load_codec(place)


def next_token(folder: Path, chain: tuple[int, ...]) -> torch.Tensor:
    """Probabilities of the token after a chain, [vocabulary]."""
    model: Qwen3 = load_model(folder)
    with torch.no_grad():
        return torch.softmax(model.logits(model(torch.tensor([chain])))[0, -1], -1)


def test_it_teaches_the_format_and_leaves_the_choice_open(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    losses = warm_start(folder, [Corridors()], codec, steps=40, seed=0, episodes=24, lr=1e-2)
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


def test_it_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    prints = []
    for number, seed in enumerate((3, 3, 4)):
        folder, codec = new_folder(tmp_path / str(number))
        warm_start(folder, [Corridors()], codec, steps=2, seed=seed, episodes=4)
        prints.append((folder / "model.safetensors").read_bytes())
    assert prints[0] == prints[1] != prints[2]


def test_each_argument_matters(tmp_path: Path) -> None:
    found = set()
    changes: list[dict[str, Any]] = [{}, {"episodes": 5}, {"lr": 1e-2}, {"steps": 3}]
    for number, change in enumerate(changes):
        folder, codec = new_folder(tmp_path / str(number))
        arguments = {"steps": 2, "seed": 0, "episodes": 4, **change}
        warm_start(folder, [Corridors()], codec, **arguments)
        found.add(fingerprint(load_folder(folder)[1]))
    assert len(found) == 4


def test_only_the_weights_of_the_folder_change(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    warm_start(folder, [Corridors(), Corridors(max_turns=1)], codec, steps=1, seed=0, episodes=2)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == ["model.safetensors"]


def test_a_mixture_is_taught_too(tmp_path: Path) -> None:
    write_mixture(tmp_path / "model", SERVED)
    before = load_folder(tmp_path / "model")[1]
    codec = load_codec(tmp_path / "model")
    losses = warm_start(tmp_path / "model", [Corridors()], codec, steps=12, seed=0, episodes=8)
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
    warm_start(tmp_path / "half", [Corridors()], codec, steps=1, seed=0, episodes=2)
    taught = load_folder(tmp_path / "half")[1]
    assert {tensor.dtype for tensor in taught.values()} == {torch.bfloat16}
    assert fingerprint(taught) != fingerprint(rounded)


def test_an_environment_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder, codec = new_folder(tmp_path / "model")
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(EnvironmentFailedError, match="no action"):
        warm_start(folder, [Corridors(), Corridors(fails=True)], codec, steps=1, seed=0)
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
        warm_start(folder, [Corridors()], codec, steps=1, seed=0)


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
