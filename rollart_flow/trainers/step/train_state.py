"""State that a training step changes: policy, value head of a critic, and optimizer.

Returned tensors have the layout of the parameters and Hugging Face names; those of the head begin
with `value_head`. The invariant: `restore` needs exactly the tensors of `state`, and only the
policy is published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.models.folder import check_tensors
from rollart_flow.models.language_model import LanguageModel, ModelShape
from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
from rollart_flow.trainers.optimizer import AdamW, at_once
from rollart_flow.trainers.settings import LoraSettings, RankSettings
from rollart_flow.trainers.step.critic import VALUE, ValueHead
from rollart_flow.trainers.step.running import PolicyModel, Runner

_OPTIMIZER_TENSORS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class InitialState:
    """The model and settings from which each rank builds its `TrainState`."""

    config: ModelShape
    tensors: Mapping[str, torch.Tensor]
    """Initial weights in Hugging Face names, whole."""
    algorithm: Algorithm
    optimizer: AdamW
    gradient_checkpointing: bool = False
    lora: LoraSettings | None = None
    """The adapter to train; None trains all weights."""
    seed: int = 0
    """Seed of a fresh adapter."""
    publishes_adapter: bool = False
    """Whether versions are the adapter alone, and not whole weights."""

    @staticmethod
    def of(
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> InitialState:
        """Return the initial state under the settings of a rank."""
        alone = settings.lora is not None and settings.adapter_base is not None
        return InitialState(
            config, tensors, algorithm, settings.optimizer, settings.gradient_checkpointing,
            settings.lora, settings.seed, alone,
        )  # fmt: skip


class TrainState:
    """Model, head and optimizer in float32; subclasses shard them over ranks."""

    base_checksum: str | None = None
    """`fingerprint` of the initial weights where versions are an adapter over them."""

    def __init__(self, initial: InitialState, device: torch.device) -> None:
        """Copy the initial weights to `device`.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        check_tensors(initial.config, initial.tensors)
        self._device = device
        self._recomputes = initial.gradient_checkpointing
        whole = {name: tensor.float() for name, tensor in initial.tensors.items()}
        self.model: PolicyModel = self._policy(initial.config, whole)
        self.critic: ValueHead | None = None
        scale = 1.0
        if (critic := initial.algorithm.critic) is not None:
            with device:
                head = ValueHead(initial.config.hidden_size)
            self.critic = self._placed(head)
            scale = critic.lr_scale
        self._trained = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        self._stored = self.model if isinstance(self.model, LanguageModel) else None
        self._head = {} if self.critic is None else self.critic.parameters_by_name()
        self._settings = initial.optimizer
        self.optimizer = self._optimizer(scale)
        self.run: Runner | None = self._runner()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters of the policy and of the head, as they are trained."""
        return [*self._trained.values(), *self._head.values()]

    def policy(self) -> dict[str, torch.Tensor]:
        """Weights of the policy."""
        constants = {} if self._stored is None else self._stored.constants()
        return self._named(self._trained, lambda parameter: parameter) | constants

    def published(self) -> dict[str, torch.Tensor]:
        """Tensors of a published version and of a checkpoint: those of `policy`, or an adapter."""
        return self.policy()

    def everything(self) -> dict[str, torch.Tensor]:
        """Tensors of a published version, and the parameters of the head."""
        return self.published() | self._named(self._head, lambda parameter: parameter)

    def layouts(self) -> dict[str, torch.Tensor]:
        """Tensors by the names under which a checkpoint has them or their optimizer's tensors."""
        return self.everything()

    def resident(self) -> list[torch.Tensor]:
        """Tensors that stay on the device between two steps: parameters and optimizer tensors."""
        moments = [tensor for kinds in self.optimizer.state.values() for tensor in kinds.values()]
        weights = [parameter for _, parameter in self.model.named_parameters()]
        return [*weights, *self._head.values(), *moments]

    def remember(self) -> Callable[[], None]:
        """Copy weights and optimizer state; the returned function restores them."""
        weights = [p.detach().clone() for p in self.parameters]
        state = {
            parameter: {kind: tensor.clone() for kind, tensor in tensors.items()}
            for parameter, tensors in self.optimizer.state.items()
        }

        def put_back() -> None:
            with torch.no_grad():
                for parameter, tensor in zip(self.parameters, weights, strict=True):
                    parameter.copy_(tensor)
            self.optimizer.state.clear()
            self.optimizer.state.update(state)

        return put_back

    def forget_gradient(self) -> None:
        """Drop the gradient before the next pass."""
        self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        """Update the weights by the gradient that `clip` completed."""
        self.optimizer.step()

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next updates."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]

    def clip(self) -> float:
        """Complete the gradient, clip it to the largest norm, and return its norm before that."""
        largest = self._settings.clip_norm or math.inf
        foreach = at_once(self.parameters)
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, largest, foreach=foreach))

    def settle(self) -> None:
        """Prepare the parameters for an update after passes without a gradient."""

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather tensors, detached and whole, on the CPU; a tensor on the CPU is not copied."""
        return {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    def _policy(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> PolicyModel:
        """Build the model on its device."""
        with self._device:
            return self._built(shape, whole)

    def _built(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> LanguageModel:
        model = shape.build()
        model.load_stored(whole)
        if self._recomputes:
            model.recompute_layers()
        return model

    def _optimizer(self, critic_lr_scale: float) -> torch.optim.AdamW:
        """Build the optimizer of the parameters of policy and head."""
        return self._settings.build(self._trained.values(), self._head.values(), critic_lr_scale)

    def _runner(self) -> Runner | None:
        """Return the runner of a model with layers in other processes; None for a whole one."""
        return None

    def _placed(self, head: ValueHead) -> ValueHead:
        """Move the head to its device."""
        return head

    def _names(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the tensors that a parameter holds."""
        return (parameter,) if self._stored is None else self._stored.names(parameter)

    def _parts(self, parameter: str, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split a tensor with a parameter's layout into the tensors of `_names`."""
        return (tensor,) if self._stored is None else self._stored.split(parameter, tensor)

    def _joined(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the tensors of `_names`, which may be whole, in a parameter's layout."""
        whole = parts[0] if self._stored is None else self._stored.join(parameter, parts)
        return whole.to(self._device)

    def _named(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        of: Callable[[torch.nn.Parameter], torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        return {
            name: part
            for own, parameter in parameters.items()
            for name, part in zip(
                self._names(own), self._parts(own, of(parameter).detach()), strict=True
            )
        }

    def _moments(self, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's tensors of a parameter in its layout; none before an update."""
        moments: Mapping[str, torch.Tensor] = self.optimizer.state[parameter]
        return moments

    def _take_moments(
        self, parameter: torch.nn.Parameter, moments: Mapping[str, torch.Tensor]
    ) -> None:
        """Set the optimizer's tensors of a parameter."""
        self.optimizer.state[parameter] = dict(moments)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the checkpoint's tensors besides the policy, as `<parameter>/<tensor>`."""
        state = {f"{name}/{VALUE}": p for name, p in self._named(self._head, lambda p: p).items()}
        for own, parameter in {**self._trained, **self._head}.items():
            names = self._names(own)
            for kind, tensor in self._moments(parameter).items():
                parts = [tensor] * len(names) if tensor.ndim == 0 else self._parts(own, tensor)
                state |= {f"{name}/{kind}": t for name, t in zip(names, parts, strict=True)}
        return state

    def check(self, found: Checkpoint, folder: Path) -> None:
        """Refuse a checkpoint that lacks a tensor of this state.

        Raises:
            TrainerError: the checkpoint has no critic.
        """
        if missing := [name for name in self._head if f"{name}/{VALUE}" not in found.state]:
            raise TrainerError(f"checkpoint {folder} has no critic: {missing[0]} is not in it")

    def restore(self, found: Checkpoint) -> None:
        """Take over the tensors of a checked checkpoint."""
        with torch.no_grad():
            self._restore_policy(found)
            for own, parameter in self._head.items():
                parameter.copy_(self._joined(own, [found.state[f"{own}/{VALUE}"]]))
            for own, parameter in {**self._trained, **self._head}.items():
                names = self._names(own)
                moments = {
                    kind: parts[0] if parts[0].ndim == 0 else self._joined(own, parts)
                    for kind in _OPTIMIZER_TENSORS
                    if (
                        parts := [
                            found.state[k] for n in names if (k := f"{n}/{kind}") in found.state
                        ]
                    )
                }
                self._take_moments(parameter, moments)

    def _restore_policy(self, found: Checkpoint) -> None:
        for own, parameter in self._trained.items():
            weights = [found.weights[name] for name in self._names(own)]
            parameter.copy_(self._joined(own, weights))


@contextmanager
def undone_on_error(
    state: TrainState, generator: torch.Generator, *, several: bool
) -> Iterator[None]:
    """Restore weights, optimizer and random state if the block fails, so that no trace is left.

    Args:
        state: the state that a step changes.
        generator: its random state decides the order of minibatches.
        several: whether anything may fail after a first update; with one update, nothing has
            changed before it, and nothing is copied.
    """
    put_back = state.remember() if several else None
    before = generator.get_state()
    try:
        yield
    except BaseException:
        state.forget_gradient()
        generator.set_state(before)
        if put_back is not None:
            put_back()
        raise
