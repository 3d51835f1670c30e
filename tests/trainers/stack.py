"""Makes a rank on a CPU train with Megatron's own stack, which is written for GPUs only.

The stack's code is Megatron's, and so is all that it computes and exchanges, over gloo. Only its
words for devices are taken in another sense: tensors made on "cuda" or taken there are the CPU's,
and a tensor of the CPU says that its type is one of "torch.cuda".
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rollart_flow.trainers.backends.megatron.capabilities import Capabilities

STACK = Capabilities(cuda=False, transformer_engine=False, stack=True)


class _CpuForCuda(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        answer = func(*args, **named)
        if func is torch.Tensor.type and isinstance(answer, str):
            return answer.replace("torch.", "torch.cuda.")
        return answer


def train_with_the_stack() -> None:
    """From now on, trainers of this process do."""
    from rollart_flow.trainers.backends.megatron import trainer

    trainer.capabilities = lambda *, cuda: STACK  # type: ignore[attr-defined]
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    _CpuForCuda().__enter__()  # type: ignore[no-untyped-call]
