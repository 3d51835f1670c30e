"""A weight store whose storage fails for a while: the run repeats what failed, and goes on."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.types import EventKind
from rollart_flow.weights import LocalWeightStore
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

STEPS = 3


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method of the store is still to fail as files do."""
    left = Counter[str]()

    def failing_first(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(store: LocalWeightStore, version: int, *rest: Any, **more: Any) -> Any:
            if version and left[name]:
                left[name] -= 1
                place, store._place = store._place, Broken()  # type: ignore[assignment]
                try:
                    return method(store, version, *rest, **more)
                finally:
                    store._place = place
            return method(store, version, *rest, **more)

        return call

    for name in ("publish", "read", "follow"):
        method = failing_first(name, getattr(LocalWeightStore, name))
        monkeypatch.setattr(LocalWeightStore, name, method)
    return left


class Broken:
    """A place that does not answer."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(5, "Input/output error")


def test_a_push_and_a_pull_that_fail_are_repeated_and_recorded(
    tmp_path: Path, failing: Counter[str]
) -> None:
    failing.update({"publish": 1, "follow": STEPS, "read": 1})
    run = run_with(source(tmp_path, steps=STEPS, every=STEPS), tmp_path, executor="inline")
    check_sound(run, STEPS)
    assert failing["publish"] == failing["read"] == 0
    retries = events(run, EventKind.RETRY)
    told = retries["detail"].str.json_path_match("$.what").to_list()
    assert {what.split(" ")[0] for what in told} == {"publish", "read"}
    errors = retries["detail"].str.json_path_match("$.error")
    assert errors.str.contains("Input/output error").all()
