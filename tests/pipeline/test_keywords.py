"""A setting is declared once: keyword, nested path, override, text in `help` and default follow."""

import inspect
import json
import pydoc
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from rollart_flow import Pipeline, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.pipeline import Buffer, Evaluate, Filter, Node, Reward, Rollout, Tasks, Train
from rollart_flow.pipeline.keywords import keywords, nested_values, setting_docs
from rollart_flow.pipeline.sandboxes import SandboxSettings
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.types import Limits, Sampling
from rollart_flow.weights.transport import TransferSettings
from tests.pipeline.parts import LAKE, POLICY, SUMS, two_domains

NODES = (Tasks, Rollout, Filter, Reward, Buffer, Train, Evaluate)

NESTED: list[tuple[str, str, str, Any]] = [
    *(
        (node, value, name, given)
        for node in ("rollout", "evaluate")
        for value, name, given in [
            ("sampling", "temperature", 0.7),
            ("sampling", "top_p", 0.9),
            ("sampling", "top_k", 5),
            ("sampling", "max_tokens", 32),
            ("sampling", "stop_token_ids", (3,)),
            ("sampling", "allowed_token_ids", (3, 4)),
            ("limits", "max_turns", 3),
            ("limits", "step_timeout_s", 2.0),
            ("limits", "trajectory_timeout_s", 20.0),
            ("limits", "context", "cut"),
            ("limits", "max_branches", 3),
        ]
    ),
    ("train", "trainer", "backend", "fsdp2"),
    ("train", "trainer", "ranks", 1),
    ("train", "trainer", "tensor_parallel", 1),
    ("train", "trainer", "pipeline_parallel", 1),
    ("train", "trainer", "sequence_parallel", False),
    ("train", "trainer", "collective_timeout_s", 60.0),
    ("train", "trainer", "optimizer", adamw(1e-4)),
    ("train", "trainer", "minibatches", 2),
    ("train", "trainer", "epochs", 2),
    ("train", "trainer", "micro_batch_tokens", 512),
    ("train", "trainer", "threads", 2),
    ("train", "trainer", "mismatch", True),
    ("train", "trainer", "keep_logprobs", True),
    ("train", "trainer", "gradient_checkpointing", True),
    ("train", "trainer", "lora_rank", 4),
    ("train", "trainer", "lora_alpha", 8.0),
    ("train", "trainer", "lora_targets", ("q_proj",)),
    ("train", "transfer", "protocol", "tcp"),
    ("train", "transfer", "rdma_devices", ()),
    ("rollout", "sandboxes", "sandbox", "bubblewrap"),
    ("rollout", "sandboxes", "sandbox_workers", 2),
    ("rollout", "sandboxes", "sandbox_affinity", {"frozenlake": ("NODE", "CPU")}),
    ("rollout", "sandboxes", "max_sandboxes", 20),
    ("rollout", "sandboxes", "min_sandboxes", 2),
    ("rollout", "sandboxes", "max_sandbox_failures", 4),
]
"""Node, nested value, setting and a value for it: every setting within a nested value."""


def built(node: str, **arguments: Any) -> Pipeline:
    """A pipeline whose node of a name is built with arguments of its own."""

    def of(name: str) -> dict[str, Any]:
        return arguments if name == node else {}

    attempts = rollout(tasks(LAKE, SUMS), POLICY, **of("rollout"))
    steps = train(buffer(reward(attempts)), POLICY, grpo(), **{"steps": 3, **of("train")})
    return Pipeline("p", steps, evaluate(POLICY, LAKE, **of("evaluate")))


def value_class(value: str) -> Callable[..., Any]:
    classes: dict[str, Callable[..., Any]] = {
        "sampling": Sampling,
        "limits": Limits,
        "trainer": TrainerSettings,
        "transfer": TransferSettings,
        "sandboxes": SandboxSettings,
    }
    return classes[value]


@pytest.mark.parametrize(("node", "value", "name", "given"), NESTED)
def test_a_setting_is_reached_by_keyword_and_within_its_value_in_python_and_text(
    node: str, value: str, name: str, given: Any
) -> None:
    flat = built(node, **{name: given})
    whole = built(node, **{value: value_class(value)(**{name: given})})
    assert flat.settings() == whole.settings()
    for each in (flat, whole):
        built_node = getattr(each, node)
        assert getattr(built_node, name) == getattr(getattr(built_node, value), name) == given
    if name == "optimizer":
        texts = {"optimizer.lr": str(given.lr)}
    else:
        texts = {name: given if isinstance(given, str) else json.dumps(given)}
    for path in (node, f"{node}.{value}"):
        changed = built(node).override({f"{path}.{key}": text for key, text in texts.items()})
        assert changed.settings() == flat.settings()


def test_the_table_above_has_every_setting_of_every_nested_value() -> None:
    nested = {
        (kind.kind, keyword.within, keyword.name)
        for kind in NODES
        for keyword in keywords(kind).values()
        if keyword.within
    }
    assert {case[:3] for case in NESTED} == nested


def test_every_keyword_is_known_to_type_checkers() -> None:
    attempts = rollout(
        tasks(LAKE), POLICY, temperature=0.7, top_p=0.9, top_k=5, max_tokens=8,
        stop_token_ids=(1,), allowed_token_ids=(1, 2), max_turns=2, step_timeout_s=1,
        trajectory_timeout_s=2,
    )  # fmt: skip
    steps = train(
        buffer(reward(attempts)), POLICY, grpo(), steps=1, backend="embedded", ranks=1,
        tensor_parallel=1, pipeline_parallel=1, sequence_parallel=False, collective_timeout_s=9,
        optimizer=adamw(), minibatches=1, epochs=1, micro_batch_tokens=9, threads=1, mismatch=False,
    )  # fmt: skip
    assert attempts.sampling.temperature == attempts.temperature == 0.7
    assert attempts.limits == Limits(max_turns=2, step_timeout_s=1, trajectory_timeout_s=2)
    assert steps.trainer.collective_timeout_s == steps.collective_timeout_s == 9


@pytest.mark.parametrize("kind", NODES)
def test_no_setting_is_declared_twice(kind: type[Node]) -> None:
    declared = Counter(
        name
        for base in (*kind.__mro__, *nested_values(kind).values())
        for name in vars(base).get("__annotations__", {})
        if name not in ("kind", "takes", "given", "__signature__") and base is not Node
    )
    assert set(declared) == set(keywords(kind)) | set(nested_values(kind))
    assert [name for name, times in declared.items() if times > 1] == []
    assert {keyword.name for keyword in keywords(kind).values() if keyword.within} == {
        field.name for value in nested_values(kind).values() for field in fields(value)
    }


@pytest.mark.parametrize("kind", NODES)
def test_help_has_each_setting_with_its_default_and_text(kind: type[Node]) -> None:
    shown = " ".join(pydoc.plain(pydoc.render_doc(kind)).split())
    docs = setting_docs(kind)
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in nested_values(kind):
            continue
        keyword = keywords(kind)[name]
        assert f"{name}: {docs[name]}" in " ".join(inspect.getdoc(kind).split())  # type: ignore[union-attr]
        assert f"{name}: {docs[name][:30]}" in shown
        if keyword.default is not MISSING and not keyword.many:
            assert parameter.default == keyword.default
            assert f"{name}: " in shown


def test_defaults_are_those_of_the_nested_values() -> None:
    node = rollout(tasks(LAKE), POLICY)
    assert (node.sampling, node.limits) == (Sampling(), Limits())
    assert train(buffer(reward(node)), POLICY, grpo(), steps=1).trainer == TrainerSettings()


def test_a_setting_is_given_once() -> None:
    with pytest.raises(PipelineError, match=r"^rollout: top_k is given twice"):
        rollout(tasks(LAKE), POLICY, top_k=3, sampling=Sampling(temperature=0.5))
    with pytest.raises(SettingsError, match=r"rollout.top_k and rollout.sampling.top_k are"):
        two_domains().override({"rollout.top_k": "3", "rollout.sampling.top_k": "4"})
    with pytest.raises(PipelineError, match=r"^rollout: sampling should be an instance"):
        built("rollout", sampling=Limits())


def test_a_part_of_a_key_may_name_the_nested_value() -> None:
    changed = two_domains().override({"trainer.optimizer.lr": "0.5", "trainer.epochs": "2"})
    assert (changed.train.optimizer.lr, changed.train.epochs) == (0.5, 2)
    with pytest.raises(SettingsError, match=r"say which: rollout.top_k, evaluate.top_k$"):
        two_domains().override({"sampling.top_k": "3"})


def test_an_override_changes_a_value_that_the_file_gave_whole() -> None:
    pipeline = built("rollout", sampling=Sampling(temperature=0.5, top_k=3))
    changed = pipeline.override({"rollout.top_k": "4"})
    assert changed.rollout.sampling == Sampling(temperature=0.5, top_k=4)


def test_a_misspelled_setting_names_the_nearest() -> None:
    with pytest.raises(PipelineError, match=r"^rollout: no setting 'temprature' \(did you"):
        built("rollout", temprature=1)
    with pytest.raises(SettingsError, match=r"'rollout.sampling.top_j' \(did you mean roll"):
        two_domains().override({"rollout.sampling.top_j": "1"})


def test_a_time_limit_of_a_pipeline_is_finite() -> None:
    with pytest.raises(PipelineError, match=r"^rollout: step_timeout_s should be a finite number"):
        built("rollout", step_timeout_s=float("inf"))
    with pytest.raises(PipelineError, match=r"^rollout: step_timeout_s should be a finite number"):
        built("rollout", limits=Limits(step_timeout_s=float("inf")))
