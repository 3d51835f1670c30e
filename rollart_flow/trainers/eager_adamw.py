"""torch's AdamW without torch's compiler, which no training step uses.

An optimizer of torch loads `torch._dynamo` when it is made and at every update, only to keep
`torch.compile` out of its methods: more than a second of CPU and 150 MB in each process that
trains. The invariant: the methods are torch's own, without the decorators that do so, so that an
update has the bits of `torch.optim.AdamW`.

Source: PyTorch 2.13, `torch/_compile.py` and `torch/optim/optimizer.py`.
"""

from inspect import unwrap
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer


class _EagerOptimizer(Optimizer):
    """The base of `EagerAdamW`, in the place that torch's base has in the order of its classes."""

    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)


class EagerAdamW(AdamW, _EagerOptimizer):
    """AdamW whose updates are never compiled and take no part in a gradient."""

    step: Any = torch.no_grad()(unwrap(Adam.step))
