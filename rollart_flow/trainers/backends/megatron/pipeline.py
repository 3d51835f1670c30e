"""Megatron's own schedules of micro-batches over pipeline stages.

Tensors between stages have the shape of their micro-batch; every stage knows the whole batch, so
that shapes need not be sent. The invariant: results are those of one process that has all layers,
except for the order of sums.

Source: Megatron-core 0.16.1, `pipeline_parallel.schedules`; run on gloo ranks, never on a GPU.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from rollart_flow.trainers.backends.megatron.core import P2PCommunicator, get_forward_backward_func
from rollart_flow.trainers.backends.megatron.groups import Groups
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.step.running import Pass

Shape = tuple[int, ...]


class Scheduled:
    """A `Runner` of micro-batches over the stages; all ranks of a replica call it."""

    def __init__(self, chunk: Any, groups: Groups, device: torch.device) -> None:
        """Prepare the schedule for this rank's part of the model.

        Args:
            chunk: module with Megatron's config and, as `module`, the `MegatronModel` of this rank.
            groups: process groups of this rank.
            device: device of this rank.
        """
        self._chunk, self._groups, self._device = chunk, groups, device
        self._run = get_forward_backward_func(pp_size=groups.layout.pipeline)

    def __call__(self, passes: Iterator[Pass], count: int, *, gradient: bool) -> None:
        feed = MicroBatchFeed(passes, self._chunk.module.between)
        with torch.set_grad_enabled(gradient), _cuda_is(self._device):
            self._run(
                forward_step_func=_forward,
                data_iterator=feed,
                model=self._chunk,
                num_microbatches=count,
                seq_length=1,  # and the next: shapes are the feed's
                micro_batch_size=1,
                forward_only=not gradient,
                p2p_communicator=StageExchange(
                    self._groups, self._chunk.config, feed, self._device
                ),
                pg_collection=self._groups.collection(),
            )


class MicroBatchFeed:
    """Micro-batches in their order, with the shapes of their tensors between stages."""

    def __init__(self, passes: Iterator[Pass], shape_of: Callable[[torch.Tensor], Shape]) -> None:
        self._passes, self._shape_of = passes, shape_of
        self._ahead: deque[Pass] = deque()
        self._computed: deque[Shape] = deque()

    def __iter__(self) -> Iterator[Pass]:
        return self

    def __next__(self) -> Pass:
        found = self._ahead.popleft() if self._ahead else next(self._passes)
        self._computed.append(self._shape_of(found.micro.token_ids))
        return found

    def coming(self) -> Shape:
        """Return the shape of the hidden states received for the next micro-batch."""
        self._ahead.append(next(self._passes))
        return self._shape_of(self._ahead[-1].micro.token_ids)

    def returning(self) -> Shape:
        """Return the shape of the gradient of the earliest micro-batch not yet asked for."""
        return self._computed.popleft()


class StageExchange(P2PCommunicator):  # type: ignore[misc]
    """Sends hidden states to the next stage, and their gradients to the previous one.

    Arguments and results are lists of one tensor, as in the replaced class, which needs CUDA and
    sends every shape ahead.
    """

    def __init__(
        self, groups: Groups, config: Any, feed: MicroBatchFeed, device: torch.device
    ) -> None:
        super().__init__(groups.pipeline, config)
        self._feed, self._device = feed, device

    def recv_forward(self, _: Any, is_first_stage: bool) -> list[torch.Tensor | None]:
        if is_first_stage:
            return [None]
        return [self._swap(self.prev_rank, None, self._feed.coming())]

    def recv_backward(self, _: Any, is_last_stage: bool) -> list[torch.Tensor | None]:
        if is_last_stage:
            return [None]
        return [self._swap(self.next_rank, None, self._feed.returning())]

    def send_forward(self, sent: list[torch.Tensor], is_last_stage: bool) -> None:
        if not is_last_stage:
            self._swap(self.next_rank, sent[0], None)

    def send_backward(self, sent: list[torch.Tensor], is_first_stage: bool) -> None:
        if not is_first_stage:
            self._swap(self.prev_rank, sent[0], None)

    def send_forward_recv_backward(
        self, sent: list[torch.Tensor], _: Any, is_last_stage: bool
    ) -> list[torch.Tensor | None]:
        if is_last_stage:
            return [None]
        return [self._swap(self.next_rank, sent[0], self._feed.returning())]

    def send_backward_recv_forward(
        self, sent: list[torch.Tensor], _: Any, is_first_stage: bool
    ) -> list[torch.Tensor | None]:
        if is_first_stage:
            return [None]
        return [self._swap(self.prev_rank, sent[0], self._feed.coming())]

    def _swap(
        self, other: int, sent: torch.Tensor | None, coming: Shape | None
    ) -> torch.Tensor | None:
        operations, received = [], None
        if sent is not None:
            states = sent.detach().contiguous()
            operations.append(dist.P2POp(dist.isend, states, other, self.pp_group))
        if coming is not None:
            received = torch.empty(coming, device=self._device)
            operations.append(dist.P2POp(dist.irecv, received, other, self.pp_group))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return None if received is None else received.requires_grad_()


def of_all_stages(
    own: Mapping[str, torch.Tensor], groups: Groups, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """Return the tensors of all stages on the CPU; every rank calls this together."""
    listed = [(name, str(t.dtype), list(t.shape)) for name, t in own.items()]
    found: dict[str, torch.Tensor] = {}
    for stage, said in enumerate(ranks.told(json.dumps(listed), groups.pipeline)):
        for name, dtype, shape in json.loads(said):
            if name in found:
                continue
            if stage == groups.stage:
                found[name] = own[name].contiguous()
            else:
                found[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            dist.broadcast(found[name], group=groups.pipeline, group_src=stage)
    return found


def _forward(
    feed: MicroBatchFeed, chunk: torch.nn.Module
) -> tuple[torch.Tensor, Callable[..., Any]]:
    """Run one micro-batch through this stage; return its states and the function of the loss."""
    each = next(feed)
    return chunk(*each.micro.inputs), partial(_visited, each)


def _visited(each: Pass, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Return the loss as Megatron needs it, with a number of tokens that is not used."""
    loss = each.visit(states)
    return states.new_zeros(()) if loss is None else loss, torch.zeros((), dtype=torch.int), None


class _Means(TorchFunctionMode):
    """Mode in which Megatron's schedules create tensors on the rank's device instead of CUDA."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = self._device
        return func(*args, **named)


def _cuda_is(device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if device.type == "cuda" else _Means(device)
