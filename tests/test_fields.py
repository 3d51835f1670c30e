"""Annotations of settings say what values are permitted; a wrong value is one line."""

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any, Literal

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, Positive, Within, check_fields, fitted
from rollart_flow.types import Limits, Sampling

PART = Annotated[float, Within(0, 1)]


@pytest.mark.parametrize(
    ("hint", "given", "held"),
    [
        (Count, 3, 3),
        (Count, 3.0, 3),
        (Count, "3", 3),
        (Positive, 2, 2.0),
        (PART, "0.5", 0.5),
        (Count | None, None, None),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, float], (1, 0.5), (1.0, 0.5)),
        (dict[str, Positive], {"a": 1}, {"a": 1.0}),
        (str | tuple[str, ...], ["a"], ("a",)),
        (Literal["a", "b"], "b", "b"),
        (Any, ..., ...),
    ],
)
def test_a_value_gets_the_type_of_its_field(hint: Any, given: object, held: object) -> None:
    found = fitted("key", hint, given)
    assert (found, type(found)) == (held, type(held))


@pytest.mark.parametrize(
    ("hint", "given", "message"),
    [
        (Count, 0, "key should be greater than or equal to 1, got 0"),
        (Count, 2.5, "key should be a valid integer, got 2.5"),
        (Count, True, "key should be a valid integer, got True"),
        (Count | None, "many", "key should be a valid integer, got 'many'"),
        (Positive, 0, "key should be greater than 0, got 0"),
        (Positive, float("nan"), "key should be a finite number, got nan"),
        (Positive, float("inf"), "key should be a finite number, got inf"),
        (PART, 1.5, "key should be less than or equal to 1, got 1.5"),
        (bool, 1, "key should be a valid boolean, got 1"),
        (str, 1, "key should be a valid string, got 1"),
        (Name, "1st", "key should be a letter, then letters, digits, '_' and '-', got '1st'"),
        (Literal["a", "b", "c"], "d", "key should be 'a', 'b' or 'c', got 'd'"),
        (tuple[int, ...], (1, "x"), "key.1 should be a valid integer, got 'x'"),
        (tuple[int, int], (1,), "key should have 2 items, got (1,)"),
        (tuple[int, ...], 3, "key should be a valid tuple, got 3"),
        (dict[str, Positive], {"a": 0}, "key.a should be greater than 0, got 0"),
        (dict[str, int], 3, "key should be a valid dictionary, got 3"),
        (Callable[[], int] | None, 3, "key should be callable, got 3"),
        (Sampling, "greedy", "key should be an instance of Sampling, got 'greedy'"),
        (str, ["long"] * 40, "key should be a valid string, got ['long', "),
    ],
)
def test_another_value_is_refused_in_one_line(hint: Any, given: object, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        fitted("key", hint, given)
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 120


def test_a_settings_class_checks_itself() -> None:
    @dataclass(frozen=True)
    class Settings:
        size: Count = 1
        parts: tuple[float, ...] = ()

        def __post_init__(self) -> None:
            check_fields(self)

    assert Settings(parts=(1,)) == Settings(1, (1.0,))
    with pytest.raises(SettingsError, match=r"^size should be"):
        Settings(size=-1)
    with pytest.raises(FrozenInstanceError):
        Settings().size = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1}, {"temperature": float("inf")}, {"top_p": 0}, {"top_p": 1.1},
        {"top_k": -1}, {"max_tokens": 0}, {"stop_token_ids": 3},
    ],
)  # fmt: skip
def test_sampling_is_checked_wherever_it_is_built(wrong: Mapping[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SettingsError, match=rf"^{name} should be"):
        Sampling(**wrong)


def test_an_attempt_may_have_no_time_limit_but_none_of_zero() -> None:
    assert Limits(step_timeout_s=float("inf")).step_timeout_s == float("inf")
    with pytest.raises(SettingsError, match=r"^step_timeout_s should be greater than 0"):
        Limits(step_timeout_s=0)
