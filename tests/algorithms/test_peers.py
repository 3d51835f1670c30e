"""The same inputs through verl's and TRL's own functions, where these are installed."""

from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import cispo, dr_grpo, grpo, gspo, rloo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Tokens
from rollart_flow.algorithms.parts.critic import Critic
from tests.algorithms.batches import Row, table
from tests.algorithms.columns import make_tokens, tensors

with_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
with_trl = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")

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
        reference_logprobs=TOKENS.reference_logprobs,
        rows=TOKENS.rows,
    )
    return algorithm.token_loss(tokens).loss.mean()


def value_and_gradient(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss of the logprobs of `TOKENS`, and its gradient by each of them."""
    logprobs = TOKENS.logprobs.detach().clone().requires_grad_()
    loss = loss_of(logprobs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def assert_equal(algorithm: Algorithm, theirs: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Value and gradient of both losses are the same."""
    loss, gradient = value_and_gradient(lambda logprobs: ours(algorithm, logprobs))
    expected, slope = value_and_gradient(theirs)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    if algorithm.name == "gspo":  # theirs gives each token the gradient of its whole trajectory
        rows = TOKENS.need("rows")
        gradient, slope = torch.bincount(rows, gradient), torch.bincount(rows, slope)
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-9)


def verls(name: str, logprobs: torch.Tensor, low: float, high: float, dual: float) -> torch.Tensor:
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


@with_verl
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
    assert_equal(algorithm, lambda logprobs: verls(name, logprobs, *limits))


def trls(logprobs: torch.Tensor, **settings: Any) -> torch.Tensor:
    """TRL's loss of the same tokens, its token mean. Its trainer is given the logprobs that it
    would have computed; whatever else it has to have is a setting that is off."""
    from accelerate import Accelerator
    from trl import GRPOTrainer

    class Given(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
        def __init__(self) -> None:
            off = {
                "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0, "use_vllm": False,
                "aux_loss_enabled": False, "_entropy_bonus_enabled": False,
                "importance_sampling_level": "token", "beta": 0.0, "loss_type": "bnpo",
            }  # fmt: skip
            self.__dict__.update(off | settings)
            self.args = SimpleNamespace(
                delta=settings.get("delta"), use_bias_correction_kl=False, steps_per_generation=1
            )
            self.model = SimpleNamespace(training=False)
            self.accelerator = Accelerator(cpu=True)
            self._metrics: Any = defaultdict(lambda: defaultdict(list))

        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Any, Any, None]:
            found = padded(logprobs)
            return found, torch.zeros_like(found), None

    mask = padded(torch.ones_like(logprobs))
    prompt = mask[:, :0].long()
    loss = Given()._compute_loss(
        None,
        {
            "prompt_ids": prompt, "prompt_mask": prompt,
            "completion_ids": mask.long(), "completion_mask": mask,
            "advantages": padded(TOKENS.advantages),
            "old_per_token_logps": padded(TOKENS.behavior_logprobs),
            "ref_per_token_logps": padded(TOKENS.need("reference_logprobs")),
            "num_items_in_batch": mask.sum(),
        },
    )  # fmt: skip
    assert isinstance(loss, torch.Tensor)
    return loss


@with_trl
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (grpo(clip=0.2, clip_high=0.28), {"epsilon_low": 0.2, "epsilon_high": 0.28}),
        (
            grpo(clip=0.1, clip_high=0.1, dual=1.4),
            {"epsilon_low": 0.1, "epsilon_high": 0.1, "delta": 1.4},
        ),
        (
            grpo(clip=0.2, clip_high=0.2, kl=0.3),
            {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.3},
        ),
        (
            gspo(clip=0.1, clip_high=0.2),
            {"epsilon_low": 0.1, "epsilon_high": 0.2, "importance_sampling_level": "sequence"},
        ),
        (cispo(clip=1.0, clip_high=0.3), {"epsilon_high": 1.3, "loss_type": "cispo"}),
    ],
    ids=["ppo", "dual clip", "k3", "gspo", "cispo"],
)
def test_losses_have_the_value_and_the_gradient_of_trls(
    algorithm: Algorithm, settings: dict[str, Any]
) -> None:
    assert_equal(algorithm, lambda logprobs: trls(logprobs, **settings))


REWARDS = [0.0, 1.0, 1.0, 3.0, -1.0, 2.0, 2.5, 0.5]
GROUPS = ["a", "a", "b", "a", "b", "b", "b", "a"]


@with_verl
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


@with_verl
def test_the_value_loss_is_verls() -> None:
    from verl.trainer.ppo import core_algos

    generator = torch.Generator().manual_seed(0)
    values, targets, old = torch.randn(3, 1, 50, generator=generator, dtype=torch.float64)
    expected, _ = core_algos.compute_value_loss(
        values, targets, old, torch.ones_like(values), cliprange_value=0.2
    )
    found = Critic(clip=0.2).loss(values[0], targets[0], old[0]).mean()
    torch.testing.assert_close(found, expected)
