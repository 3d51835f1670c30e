"""The train operator: the order in which it tells the others of a step."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from rollart_flow.algorithms import grpo
from rollart_flow.control.training.progress import PhaseSeconds
from rollart_flow.operators import train as module
from rollart_flow.operators.train import TrainContext, TrainOperator
from rollart_flow.trainers.base import StepResult
from rollart_flow.trainers.checkpoint.publishing import Publication
from rollart_flow.weights import Manifest
from rollart_flow.weights.terms import FIRST
from tests.builders import group, table

STEP = 5


class Told:
    """Every process, as the operator calls it: writes down what it is told and gives an answer."""

    def __init__(self, name: str, said: list[tuple[Any, ...]], **answers: Any) -> None:
        self._name = name
        self._said = said
        self._answers = answers
        self.call = self
        self.workers: tuple[Any, ...] = ()

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._said.append((self._name, method, *arguments[:1]))
            return self._answers.get(method)

        def begin(*arguments: Any, **keywords: Any) -> Callable[[], Any]:
            answer = call(*arguments, **keywords)
            return lambda: answer

        call.start, call.begin = call, begin  # type: ignore[attr-defined]
        return call


def committed(count: int) -> Future[int]:
    done: Future[int] = Future()
    done.set_result(count)
    return done


def test_the_coordinator_hears_of_the_version_before_once_the_step_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was restarted before the commit knows neither, and waits for both."""
    monkeypatch.setattr(module, "report_waits", lambda *_: None)
    said: list[tuple[Any, ...]] = []
    manifest = Manifest(STEP, "/nowhere", (), 0, "")
    trainers = Told(
        "trainers", said, finish_publish=(), begin_publish=Publication(manifest, under_way=True)
    )
    coordinator = Told("coordinator", said, phases=asdict(PhaseSeconds()), trained=frozenset())
    context = TrainContext(
        run=str(tmp_path),
        algorithm=grpo(),
        branch_weight="split",
        trainers=cast("Any", trainers),
        buffer=cast("Any", Told("buffer", said, commit=committed(4))),
        coordinator=cast("Any", coordinator),
        checkpoints=str(tmp_path),
        term=FIRST,
        checkpoint_every=100,
        keep_versions=2,
        keep_checkpoints=None,
        steps=100,
        evaluated=frozenset(),
        start=0,
        max_skipped=0,
        overlap_publish=True,
    )
    ages = {"staleness": [0, 0], "lag": [1, 1]}
    rows = table(*group("g00000000"))
    for name, values in ages.items():
        rows = rows.append_column(name, [values])
    named = "loss grad_norm ratio_mean ratio_max clip_fraction kl entropy learning_rate train_s"
    figures: dict[str, Any] = dict.fromkeys(named.split(), 0.0)
    result = StepResult(
        step=STEP, tokens=1, action_tokens=1, fingerprint="", threads=1, kernels="{}", **figures
    )
    TrainOperator(context)._record(rows, result, module._facts(rows, STEP, 0))
    told = [each[:2] for each in said]
    published = told.index(("coordinator", "published"))
    assert said[published] == ("coordinator", "published", STEP - 1)
    assert told.index(("buffer", "commit")) < published < told.index(("coordinator", "trained"))
