"""The nodes of the learning side of a pipeline: train and evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.parts.branches import BranchWeight
from rollart_flow.engines.registry import check_engine, engine_capabilities
from rollart_flow.envs.base import Domain
from rollart_flow.envs.registry import domains_of
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, NotNegative, Within
from rollart_flow.models.lora import Adapter, read_adapter
from rollart_flow.models.policy import Policy
from rollart_flow.pipeline.buffering import Buffer, Mix
from rollart_flow.pipeline.generating import GeneratingNode
from rollart_flow.pipeline.keywords import Converted, nested, part, setting
from rollart_flow.pipeline.node import Node, node, variadic
from rollart_flow.pipeline.producing import check_unique
from rollart_flow.pipeline.scoring import MAX_CONCURRENT, TIMEOUT_S, Reward, reward_function
from rollart_flow.pipeline.stored import Stored
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.trainers.build import check_trainer, check_updates
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.weights.registry import transport_of
from rollart_flow.weights.transport import TransferEnds, TransferSettings

if TYPE_CHECKING:
    # As `generating._Attempts`.
    class _Trains(TrainerSettings, TransferSettings): ...

else:
    _Trains = object


@node
class Train(Node, _Trains):
    """Trains the policy on each batch and publishes a new version.

    Raises:
        PipelineError: a setting is wrong, or the policy is not the one that rolls out.
        MissingExtraError: the weight store needs a package that is not installed.
    """

    kind: ClassVar[str] = "train"
    takes: ClassVar[tuple[str, ...]] = ("buffer", "mix", "stored")

    up: Buffer | Mix | Stored | Reward = part(kw_only=False)
    """The buffer that forms the batches; what mixes stored trajectories in; or `stored` alone, or
    with a `reward` of evaluation after it."""
    policy: Policy = part(kw_only=False)
    """The policy to train; the one that rolls out, if there is a rollout."""
    algorithm: Algorithm = setting(kw_only=False)
    """The loss and its advantages."""
    steps: Count = setting()
    """Training steps of the run, each of which publishes one version."""
    branch_weight: BranchWeight = "split"
    """Weight of an episode of several rows: "split" among them, so that it weighs what one row with
    all of their tokens would; "keep": each row weighs what an episode of its own would. With the
    aggregations `token` and `domain` both are the same."""
    checkpoint_every: Count = 10
    """Steps between checkpoints of model, optimizer and position."""
    keep_versions: Annotated[int, Within(2)] = 4
    """Number of newest published versions to keep, in addition to those with a checkpoint."""
    keep_checkpoints: Count | None = None
    """Number of newest checkpoints to keep, with their published versions; None keeps all. A step
    before them is replayed or forked by training again from the start of the run."""
    max_skipped: NotNegative = 3
    """Number of consecutive steps that may be skipped, each with an event, because their batch
    cannot be trained on (a loss that is not finite, for example); 0 fails the run at the first."""
    weights: str = "local"
    """Weight store that transports versions to the engines. "local": the run's folder; "mooncake":
    the memory of servers that the run starts (ROLLART section 6.2); "mooncake://HOST:PORT": the
    memory of existing servers; "nccl", "ipc": from the trainer's GPU to vLLM's, in addition to
    "local" (never run on a GPU)."""
    trainer: TrainerSettings = nested(default_factory=TrainerSettings)
    """Settings by which a batch becomes a new version."""
    transfer: TransferSettings = nested(default_factory=TransferSettings)
    """How weights travel to and from the servers of a weight store."""
    name: Name = "train"
    """Name of the node."""

    def _expect(self, up: object) -> None:
        if not (isinstance(up, Reward) and up.drawn):
            super()._expect(up)

    def _check(self) -> None:
        check_updates(self.algorithm, self.trainer, self.branch_weight)
        transport_of(self.weight_store).check(self._transfer_ends())
        if self.minibatches > self.batch_size:
            raise SettingsError(
                f"{self.minibatches} minibatches of a batch of {self.batch_size}; take fewer"
            )
        check_trainer(self.policy, self.trainer)
        if self.algorithm.needs_preferences and self.buffer is not None:
            raise SettingsError(
                f"{self.algorithm.name} learns from preferred and rejected episodes, which "
                f"{self.buffer.name} does not tell apart; train on stored(..., prefer=...) alone"
            )
        for source in self.stored:
            source.check_serves(self.algorithm)

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that forms the batches; None if all of them are drawn from what is stored."""
        source = self._source
        if isinstance(source, Stored):
            return None
        return source if isinstance(source, Buffer) else source.up

    @property
    def stored(self) -> tuple[Stored, ...]:
        """The sources of stored trajectories; there may be none."""
        source = self._source
        if isinstance(source, Buffer):
            return ()
        return (source,) if isinstance(source, Stored) else source.others

    @property
    def batch_size(self) -> int:
        """Episodes of one training step, new and stored."""
        return self._source.batch_size

    @property
    def _source(self) -> Buffer | Mix | Stored:
        """The node that the batches are of, without a reward that scores evaluation alone."""
        return cast("Stored", self.up.up) if isinstance(self.up, Reward) else self.up

    @property
    def weight_store(self) -> str:
        """Name of the weight store with the settings of its transfer."""
        return self.transfer.named(self.weights)

    def _transfer_ends(self) -> TransferEnds:
        """The trainer and the engines between which weights travel."""
        receives = engine_capabilities(self.policy).receives_weights
        if self.buffer is None:  # no engine but that of an evaluation
            return TransferEnds(self.policy.engine, receives, frozenset(), 0, self.ranks)
        node = self.buffer.up.rollout
        names = () if isinstance(node.hw_affinity, str) else node.up.domain_names
        classes = frozenset(node.resource_class(name) for name in names)
        return TransferEnds(self.policy.engine, receives, classes, node.sliding_workers, self.ranks)


@node
class Evaluate(GeneratingNode):
    """Measures the policy at versions 0, every, 2 x every, ... and the last.

    Evaluation does not use the credits of rollout.

    Raises:
        PipelineError: a setting is wrong, no domain is given, or two have the same name; the
            engine takes no adapter, or the folder holds none.
        MissingExtraError: an adapter needs an engine that is not installed.
    """

    kind: ClassVar[str] = "evaluate"

    policy: Policy = part(kw_only=False)
    """The policy to measure."""
    domains: tuple[Domain, ...] = part(many=True, init=False)
    """Domains to measure in, each a `Domain` or its name such as "frozenlake(slippery=True)"."""
    every: Count = 10
    """Versions between two evaluations."""
    episodes: Count = 64
    """Episodes by domain of each metric: greedy for `success`, sampled for `success_sampled`. If
    `samples` is more than 1, the number of tasks by domain, at most as many as the domain has."""
    samples: Count = 1
    """Attempts at each task at the node's temperature; pass@k is estimated for k up to this."""
    redundancy: NotNegative = 0
    """Attempts at each task beyond those that count; the slowest are cancelled."""
    seed: int = 0
    """Seed of the evaluated tasks."""
    lora: Converted[str | Path | Adapter | None, Adapter | None] = setting(
        default=None, read=read_adapter
    )
    """Folder of a LoRA adapter in PEFT's format that is applied to every measured version (vLLM),
    as in serving the trained policy with it; None: the policy alone. The run keeps a copy. Rollout
    and training take no adapter: tokens sampled with one would not be those of the policy that is
    trained on them."""
    reward: Converted[RewardFunction | str | None, RewardFunction | None] = part(default=None)
    """Function that scores the episodes of an offline pipeline without a node `reward`, as `fn` of
    that node; None: the environment's own reward. A node `reward` scores them where there is
    one."""
    name: Name = "evaluate"
    """Name of the node."""

    def _check(self) -> None:
        self._hold("reward", reward_function(self.reward, TIMEOUT_S, MAX_CONCURRENT))
        measured: tuple[Any, ...] = domains_of(self.domains)
        for domain in measured:
            if not isinstance(domain, Domain):
                raise SettingsError(f"takes domains, got {domain!r}")
        if not measured:
            raise SettingsError("domains are empty; give at least one")
        check_unique(measured)
        self._hold("domains", measured)
        self._check_by_domain(measured)
        self._check_context(measured)
        if self.lora is not None:
            check_engine(self.policy, adapted=True)


train = Train
evaluate = variadic(Evaluate, object)
