"""AdamW settings: the schedule as a function of the step, and what is refused."""

import math
from typing import Any

import pytest
import torch

from rollart_flow.errors import SettingsError
from rollart_flow.trainers import AdamW, adamw
from rollart_flow.trainers.optimizer import at_once


def rates(settings: AdamW, steps: int) -> list[float]:
    return [settings.learning_rate(step) for step in range(1, steps + 1)]


def test_constant() -> None:
    assert rates(adamw(0.5), 3) == [0.5] * 3


def test_warm_up_is_linear_from_0() -> None:
    assert rates(adamw(1.0, warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_after_the_warm_up_to_the_final_rate() -> None:
    settings = adamw(1.0, warmup_steps=2, schedule="linear", decay_steps=6, final_lr=0.2)
    assert rates(settings, 8) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_cosine_decay() -> None:
    settings = adamw(1.0, schedule="cosine", decay_steps=4)
    expected = [(1 + math.cos(math.pi * part)) / 2 for part in (0.25, 0.5, 0.75, 1.0)]
    assert rates(settings, 4) == pytest.approx(expected)
    assert settings.learning_rate(100) == pytest.approx(0.0)


def test_only_matrices_decay() -> None:
    matrix, norm = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    optimizer = adamw(0.1, weight_decay=0.5).build([matrix, norm])
    for parameter in (matrix, norm):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert matrix.flatten().tolist() == pytest.approx([0.95] * 4)
    assert norm.tolist() == [1.0, 1.0]


def test_updates_of_all_parameters_at_once_have_the_bits_of_updates_one_by_one() -> None:
    """Steps that torch's own optimizer took, one by one, must be recomputed to the bit."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((33, 17), (64,), (5, 3), (1,))
    whole, single = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    built = adamw(1e-2, weight_decay=0.1).build(whole)
    assert [group["foreach"] for group in built.param_groups] == [True, True]
    decaying = {"params": [each for each in single if each.ndim >= 2], "weight_decay": 0.1}
    others = {"params": [each for each in single if each.ndim < 2], "weight_decay": 0.0}
    before = torch.optim.AdamW([decaying, others], lr=1e-2, foreach=False, fused=False)
    for _ in range(20):
        for one, other in zip(whole, single, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        norms = [
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=together)
            for parameters, together in ((whole, at_once(whole)), (single, False))
        ]
        assert norms[0] == norms[1]
        built.step()
        before.step()
    assert all(map(torch.equal, whole, single))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("lr", "3e-3"),
        ("betas", (0.9, 1.0)),
        ("betas", (0.9,)),
        ("betas", (0.9, "x")),
        ("eps", 0),
        ("weight_decay", -0.1),
        ("clip_norm", -1.0),
        ("warmup_steps", 2.5),
        ("schedule", "cosin"),
        ("schedule", "linear"),
        ("decay_steps", 5),
        ("final_lr", 1.0),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(name: str, value: Any) -> None:
    named = "decay_steps" if value == "linear" else name
    with pytest.raises(SettingsError, match=f"adamw.{named}") as caught:
        adamw(**{name: value})
    assert "\n" not in str(caught.value)


def test_a_decay_that_ends_within_the_warm_up_is_refused() -> None:
    with pytest.raises(SettingsError, match="decay_steps=3"):
        adamw(warmup_steps=3, schedule="cosine", decay_steps=3)


def test_betas_may_come_from_json() -> None:
    assert adamw(betas=[0.9, 0.99]) == adamw(betas=(0.9, 0.99))  # type: ignore[arg-type]
