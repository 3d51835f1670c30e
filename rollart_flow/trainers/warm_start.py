"""Format warm start: a few supervised steps that teach a fresh policy how an action is written.

The examples are episodes of the domains' real environments, played with well-formed but random
actions, so that the policy learns the FORMAT of an action and nothing about which action is right.
The invariant: the result is a function of the folder's weights, the arguments and the seed, unless
an environment runs into its time limit, and the folder holds either the old weights or the new
ones.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError

from rollart_flow.algorithms.advantages import Constant
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses import Vanilla
from rollart_flow.envs.base import Domain
from rollart_flow.envs.examples import ExampleSettings, check_examples
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.folder import load_folder
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.examples import ExamplePlayer, example_batches
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.validation import check_count
from rollart_flow.weights.atomic import clear_leftovers, put_file
from rollart_flow.weights.buckets import save_tensors

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
    settings: ExampleSettings | None = None,
) -> list[float]:
    """Teach the model of a folder the format of actions, in place and atomically.

    Args:
        folder: Hugging Face folder with one `model.safetensors`, whose dtype is preserved.
        domains: domains whose environments are played, for as many episodes each.
        codec: tokenizer of the folder.
        steps: number of optimizer steps, each on new episodes.
        seed: seed of tasks, environments and actions.
        episodes: number of episodes of one step, over all domains.
        lr: learning rate of AdamW.
        threads: number of intra-op threads.
        settings: how the code of the domains runs; by default in processes.

    Returns:
        Mean negative log-likelihood per action token before each step [nats].

    Raises:
        SettingsError: there is no domain, or a domain without example actions.
        EnvironmentFailedError: a domain's code cannot be run, or too many episodes in a row failed.
        EnvironmentTimeoutError: an environment cannot be made in time.
        TrainerError: the weights are in shards or cannot be written; the folder is unchanged.
    """
    check_count("warm_start.steps", steps, low=1)
    check_count("warm_start.episodes", episodes, low=1)
    check_examples(domains)
    if not domains:
        raise SettingsError("a warm start needs at least one domain")
    if not (Path(folder) / _WEIGHTS).is_file():
        raise TrainerError(f"a warm start needs one {_WEIGHTS} in {str(folder)!r}, not shards")
    config, stored = load_folder(folder)
    trainer = EmbeddedTrainer(
        config, stored, IMITATION, RankSettings(optimizer=adamw(lr), threads=threads)
    )
    context = config.max_position_embeddings
    played = settings or ExampleSettings()
    players = [ExamplePlayer(domain, codec, seed, context, played) for domain in domains]
    losses = _imitated(trainer, players, steps, episodes)
    taught = {name: t.to(stored[name].dtype) for name, t in trainer.weights().items()}
    try:
        clear_leftovers(Path(folder))
        put_file(Path(folder) / _WEIGHTS, lambda path: save_tensors(taught, path))
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"warm start of {str(folder)!r} was not written: {error}") from error
    return losses


def _imitated(
    trainer: EmbeddedTrainer, players: Sequence[ExamplePlayer], steps: int, episodes: int
) -> list[float]:
    """Train on new episodes in each step, which are played during the step before."""
    losses = []
    with example_batches(players) as batches:
        batches.begin(episodes)
        for step in range(1, steps + 1):
            batch = batches.take()
            if step < steps:
                batches.begin(episodes)
            losses.append(trainer.train_step(step, batch).loss)
    return losses
