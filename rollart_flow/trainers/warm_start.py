"""Format warm start: a few supervised steps that teach a fresh policy how an action is written.

The examples are episodes of the domains' real environments, played with well-formed but random
actions, so that the policy learns the FORMAT of an action and nothing about which action is right.
The invariant: the result is a function of the folder's weights, the arguments and the seed, and the
folder holds either the old weights or the new ones.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from safetensors import SafetensorError

from rollart_flow.algorithms.advantages import Constant
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses import Vanilla
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.tokenizer import TextCodec
from rollart_flow.schema import row_schema
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.types import Sampling, Split, Task
from rollart_flow.validation import check_count
from rollart_flow.weights.buckets import save_tensors
from rollart_flow.weights.folders import clear_leftovers, put_file

_WEIGHTS = "model.safetensors"
IMITATION = Algorithm("supervised", Vanilla(), Constant())
"""Loss -log pi_theta, averaged over all action tokens of a batch; rewards play no role."""


def warm_start(
    folder: str | Path,
    domains: Sequence[Domain],
    codec: TextCodec,
    steps: int,
    seed: int,
    *,
    episodes: int = 64,
    lr: float = 3e-3,
    threads: int = 1,
) -> list[float]:
    """Teach the model of a folder the format of actions, in place and atomically.

    Args:
        folder: Hugging Face folder with one `model.safetensors`, whose dtype is preserved.
        domains: domains whose environments run in this process, for as many episodes each.
        codec: tokenizer of the folder.
        steps: number of optimizer steps, each on new episodes.
        seed: seed of tasks, environments and actions.
        episodes: number of episodes of one step, over all domains.
        lr: learning rate of AdamW.
        threads: number of intra-op threads.

    Returns:
        Mean negative log-likelihood per action token before each step [nats].

    Raises:
        SettingsError: there is no domain, or a domain without example actions.
        TrainerError: the weights are in shards or cannot be written; the folder is unchanged.
    """
    check_count("warm_start.steps", steps, low=1)
    check_count("warm_start.episodes", episodes, low=1)
    for domain in domains:
        if type(domain).example_action is Domain.example_action:
            raise SettingsError(
                f"domain {domain.name!r} has no example_action, so its format cannot be taught; "
                "define it or set warm_start to 0"
            )
    if not domains:
        raise SettingsError("a warm start needs at least one domain")
    if not (Path(folder) / _WEIGHTS).is_file():
        raise TrainerError(f"a warm start needs one {_WEIGHTS} in {str(folder)!r}, not shards")
    config, stored = load_folder(folder)
    settings = RankSettings(optimizer=adamw(lr), threads=threads)
    trainer = EmbeddedTrainer(config, stored, IMITATION, settings)
    context = config.max_position_embeddings
    with closing(_episodes(domains, codec, seed, context)) as played:
        losses = [
            trainer.train_step(step, _table(list(islice(played, episodes)))).loss
            for step in range(1, steps + 1)
        ]
    taught = {name: t.to(stored[name].dtype) for name, t in trainer.weights().items()}
    try:
        clear_leftovers(Path(folder))
        put_file(Path(folder) / _WEIGHTS, lambda path: save_tensors(taught, path))
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"warm start of {str(folder)!r} was not written: {error}") from error
    return losses


Episode = tuple[list[int], list[bool]]
"""Token ids of a chain, and which of them are action tokens."""


def _episodes(
    domains: Sequence[Domain], codec: TextCodec, seed: int, longest: int
) -> Generator[Episode, None, None]:
    """Generate episodes of the domains in turn; the same arguments give the same sequence."""
    random = Random(seed)
    tasks = [domain.tasks(Split.TRAIN, seed) for domain in domains]
    environments = [domain.make() for domain in domains]
    try:
        while True:
            for domain, source, environment in zip(domains, tasks, environments, strict=True):
                yield _play(domain, next(source), environment, codec, random, longest)
    finally:
        for environment in environments:
            environment.close()


def _play(
    domain: Domain,
    task: Task,
    environment: Environment,
    codec: TextCodec,
    random: Random,
    longest: int,
) -> Episode:
    """Play one episode of random well-formed actions; it ends before a turn that would not fit."""
    token_ids: list[int] = []
    mask: list[bool] = []
    observation, _ = environment.reset(random.getrandbits(31), task.payload)
    for turn in range(domain.max_turns):
        action = domain.example_action(task, random)
        shown = codec.encode_observation(observation, first=turn == 0)
        written = (*codec.encode(action), codec.stop_token_ids[0])
        if len(token_ids) + len(shown) + len(written) > longest:
            break
        token_ids += (*shown, *written)
        mask += [False] * len(shown) + [True] * len(written)
        observation, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            break
    if not token_ids:
        raise SettingsError(
            f"the first turn of domain {domain.name!r} does not fit into {longest} tokens; "
            "raise the policy's max_context"
        )
    return token_ids, mask


def _table(episodes: list[Episode]) -> pa.Table:
    """Convert episodes to rows for a trainer."""
    columns: dict[str, list[Any]] = {
        "token_ids": [token_ids for token_ids, _ in episodes],
        "action_mask": [mask for _, mask in episodes],
        "logprobs": [[0.0] * len(mask) for _, mask in episodes],
        "sampling": [asdict(Sampling()) for _ in episodes],
        "kept_token_ids": [None for _ in episodes],
    }
    declared = row_schema("trajectories")
    table = pa.table({name: pa.array(columns[name], declared.field(name).type) for name in columns})
    ones = pa.array([1.0] * len(episodes), pa.float64())
    advantages = pa.array([[1.0]] * len(episodes), pa.list_(pa.float32()))
    return table.append_column("weight", ones).append_column("advantage", advantages)
