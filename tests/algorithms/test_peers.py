"""The same inputs through verl's own functions, where verl is installed."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import cispo, dr_grpo, grpo, gspo, rloo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Tokens
from rollart_flow.algorithms.critic import Critic
from tests.algorithms.batches import Row, table
from tests.algorithms.columns import make_tokens, tensors

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")

TOKENS = tensors(make_tokens())


def padded(values: torch.Tensor, tokens: Tokens = TOKENS) -> torch.Tensor:
    """[action tokens] as [trajectories, longest], padded with 0; differentiable."""
    rows = tokens.need("rows")
    counts = torch.bincount(rows)
    places = torch.cat([torch.arange(int(count)) for count in counts])
    empty = values.new_zeros(len(counts), int(counts.max()))
    return empty.index_put((rows, places), values)


def ours(algorithm: Algorithm, logprobs: torch.Tensor) -> torch.Tensor:
    """Mean loss over all action tokens of a batch, whatever the aggregation of the recipe."""
    tokens = Tokens(
        logprobs,
        TOKENS.behavior_logprobs,
        TOKENS.advantages,
        old_logprobs=TOKENS.old_logprobs,
        rows=TOKENS.rows,
    )
    return algorithm.token_loss(tokens).loss.mean()


def theirs(name: str, logprobs: torch.Tensor, low: float, high: float, dual: float) -> torch.Tensor:
    """verl's loss of the same tokens, its token mean; its old policy is the one that drew them."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=low,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
    )
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=padded(TOKENS.behavior_logprobs),
        log_prob=padded(logprobs),
        advantages=padded(TOKENS.advantages),
        response_mask=padded(torch.ones_like(logprobs)),
        loss_agg_mode="token-mean",
        config=config,
    )
    assert isinstance(loss, torch.Tensor)
    return loss


@pytest.mark.parametrize(
    ("algorithm", "name", "limits"),
    [
        (grpo(clip=0.2, clip_high=0.28, dual=3.0), "vanilla", (0.2, 0.28, 3.0)),
        (grpo(clip=0.1, clip_high=0.1, dual=1.4), "vanilla", (0.1, 0.1, 1.4)),
        (gspo(clip=0.1, clip_high=0.2), "gspo", (0.1, 0.2, 3.0)),
        (cispo(clip=0.1, clip_high=0.3), "cispo", (0.1, 0.3, 3.0)),
    ],
    ids=["ppo", "dual clip", "gspo", "cispo"],
)
def test_losses_have_the_value_and_the_gradient_of_verls(
    algorithm: Algorithm, name: str, limits: tuple[float, float, float]
) -> None:
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    sides: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda logprobs: ours(algorithm, logprobs),
        lambda logprobs: theirs(name, logprobs, *limits),
    ]
    for side in sides:
        logprobs = TOKENS.logprobs.detach().clone().requires_grad_()
        loss = side(logprobs)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        found.append((loss.detach(), gradient))
    (loss, gradient), (expected, slope) = found
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    if name == "gspo":  # theirs gives each token the gradient that its whole trajectory has
        sums = [torch.bincount(TOKENS.need("rows"), g) for g in (gradient, slope)]
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-6, atol=1e-9)
    else:
        torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-9)


REWARDS = [0.0, 1.0, 1.0, 3.0, -1.0, 2.0, 2.5, 0.5]
GROUPS = ["a", "a", "b", "a", "b", "b", "b", "a"]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_advantages_are_verls(name: str) -> None:
    from verl.trainer.ppo import core_algos

    rewards: Any = torch.tensor(REWARDS, dtype=torch.float64)[:, None]
    mask = torch.ones_like(rewards)
    index = np.array(GROUPS)
    algorithm = {"grpo": grpo(), "dr_grpo": dr_grpo(constant_tokens=8), "rloo": rloo()}[name]
    found = algorithm.advantages(table([Row(g, r) for g, r in zip(GROUPS, REWARDS, strict=True)]))
    if name == "rloo":
        expected, _ = core_algos.compute_rloo_outcome_advantage(rewards, mask, index)
    else:
        expected, _ = core_algos.compute_grpo_outcome_advantage(
            rewards, mask, index, norm_adv_by_std_in_grpo=name == "grpo"
        )
    scale = np.sqrt(3 / 4) if name == "grpo" else 1.0  # theirs divides the variance by G - 1
    np.testing.assert_allclose(
        np.concatenate(found.values) * scale, expected[:, 0].numpy(), rtol=1e-5, atol=1e-6
    )


def test_the_value_loss_is_verls() -> None:
    from verl.trainer.ppo import core_algos

    generator = torch.Generator().manual_seed(0)
    values, targets, old = torch.randn(3, 1, 50, generator=generator, dtype=torch.float64)
    expected, _ = core_algos.compute_value_loss(
        values, targets, old, torch.ones_like(values), cliprange_value=0.2
    )
    found = Critic(clip=0.2).loss(values[0], targets[0], old[0]).mean()
    torch.testing.assert_close(found, expected)
