"""Batches of example episodes for a format warm start, as token ids with the images among them.

The domains' own code plays them elsewhere (`envs.examples`); this process only encodes them. The
invariant: the n-th batch is a function of the domains, the codec and the seed, unless a call runs
into its time limit.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from rollart_flow.envs.base import Domain
from rollart_flow.envs.examples import ExampleEpisodes, ExampleSettings, Turn
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.resources.local import LoopThread, wait
from rollart_flow.schema import row_schema
from rollart_flow.store.images import carrying
from rollart_flow.text import counted
from rollart_flow.types import Image, Sampling
from rollart_flow.types.messages import images_of

_FAILURES = 5
"""Number of consecutive failed episodes of a domain that end the warm start."""


@dataclass(slots=True)
class ExampleChain:
    """The chain of one episode."""

    token_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    """Whether each token is one of an action."""
    images: list[Image] = field(default_factory=list)
    """Images whose placeholders the chain has, in their order."""


class ExamplePlayer:
    """Plays the example episodes of one domain.

    Args:
        domain: a domain with example actions.
        codec: tokenizer of the policy.
        seed: seed of tasks, environments and actions.
        longest: longest chain in tokens; an episode ends before a turn that would not fit.
        settings: how the code of the domain runs.
    """

    def __init__(
        self, domain: Domain, codec: TextCodec, seed: int, longest: int, settings: ExampleSettings
    ) -> None:
        self._domain = domain
        self._codec = codec
        self._longest = longest
        self._seeds = Random(seed)
        self._episodes = ExampleEpisodes(domain, seed, settings)

    async def play(self, count: int) -> list[ExampleChain]:
        """Play episodes; one that fails is replaced by another one.

        Raises:
            EnvironmentFailedError: the environment cannot be made, or too many episodes failed.
            EnvironmentTimeoutError: making the environment took too long.
            SettingsError: not even one turn fits.
        """
        played: list[ExampleChain] = []
        failures = 0
        while len(played) < count:
            await self._episodes.open()
            try:
                played.append(await self._episode())
                failures = 0
            except (EnvironmentFailedError, EnvironmentTimeoutError) as error:
                failures += 1
                if failures == _FAILURES:
                    raise EnvironmentFailedError(
                        f"format warm start: {failures} episodes of domain {self._domain.name!r} "
                        f"in a row failed; the last one: {error}; mend it or set warm_start to 0"
                    ) from error
        return played

    async def close(self) -> None:
        """End the process of the environment."""
        await self._episodes.close()

    async def _episode(self) -> ExampleChain:
        """Play one episode of random well-formed actions."""
        episode, talk = ExampleChain(), self._codec.converse()
        turn: Turn | None = await self._episodes.begin(self._seeds.getrandbits(63))
        while turn is not None:
            observation, action = turn
            shown = talk.observe(observation)
            written = (*self._codec.encode(action), self._codec.stop_token_ids[0])
            if len(episode.token_ids) + len(shown) + len(written) > self._longest:
                break
            talk.act(written)
            episode.token_ids += (*shown, *written)
            episode.action_mask += [False] * len(shown) + [True] * len(written)
            episode.images += images_of(observation)
            turn = await self._episodes.turn()
        if not episode.token_ids:
            raise SettingsError(
                f"the first turn of domain {self._domain.name!r} does not fit into "
                f"{counted(self._longest, 'token')}; raise the policy's max_context"
            )
        return episode


class ExampleBatches:
    """Batches of episodes, which are played while the caller does something else."""

    def __init__(self, loop: LoopThread, players: Sequence[ExamplePlayer]) -> None:
        self._loop = loop
        self._players = players
        self._begun = 0
        self._playing: Any = None

    def begin(self, count: int) -> None:
        """Begin to play as many episodes, of the domains in turn; `take` has them."""
        turns = [place % len(self._players) for place in range(self._begun, self._begun + count)]
        self._begun += count
        self._playing = self._loop.start(self._play(turns))

    def take(self) -> pa.Table:
        """Wait for the episodes that were begun, and return them as rows for a trainer.

        Raises:
            EnvironmentFailedError: see `ExamplePlayer.play`.
            EnvironmentTimeoutError: see `ExamplePlayer.play`.
            SettingsError: see `ExamplePlayer.play`.
        """
        episodes: list[ExampleChain] = wait(self._playing, "episodes of the format warm start")
        return _table(episodes)

    def end(self) -> None:
        """Stop to play, and end the processes of the environments."""
        if self._playing is not None:
            self._playing.cancel()
        wait(self._loop.start(self._close()), "end of the format warm start")

    async def _close(self) -> None:
        for player in self._players:
            await player.close()

    async def _play(self, turns: Sequence[int]) -> list[ExampleChain]:
        shares = [player.play(turns.count(place)) for place, player in enumerate(self._players)]
        played = [iter(episodes) for episodes in await asyncio.gather(*shares)]
        return [next(played[place]) for place in turns]


@contextmanager
def example_batches(players: Sequence[ExamplePlayer]) -> Iterator[ExampleBatches]:
    """Play in a thread of its own for the duration of the context."""
    loop = LoopThread()
    batches = ExampleBatches(loop, players)
    try:
        yield batches
    finally:
        batches.end()
        loop.close()


def _table(episodes: Sequence[ExampleChain]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "token_ids": [each.token_ids for each in episodes],
        "action_mask": [each.action_mask for each in episodes],
        "logprobs": [[0.0] * len(each.token_ids) for each in episodes],
        "sampling": [asdict(Sampling()) for _ in episodes],
        "kept_token_ids": [None for _ in episodes],
        "images": [[image.image_id for image in each.images] or None for each in episodes],
    }
    declared = row_schema("trajectories")
    table = pa.table({name: pa.array(columns[name], declared.field(name).type) for name in columns})
    ones = pa.array([1.0] * len(episodes), pa.float64())
    advantages = pa.array([[1.0]] * len(episodes), pa.list_(pa.float32()))
    whole = table.append_column("weight", ones).append_column("advantage", advantages)
    return carrying(whole, (image for each in episodes for image in each.images))
