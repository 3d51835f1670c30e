"""Settings and tasks of verifiers; `test_real_packages.py` plays episodes with the package."""

from itertools import islice
from typing import Any

import pytest

from rollart_flow.envs import Verifiers
from rollart_flow.errors import SettingsError
from rollart_flow.types import Split


def test_tasks_are_the_places_of_the_taskset_and_the_first_ones_are_held_out() -> None:
    domain = Verifiers("sums", python="python", count=6, held_out_count=2)
    held_out = {task.task_id for task in domain.held_out(0)}
    assert held_out == {"verifiers/0", "verifiers/1"}
    trained = [task.task_id for task in islice(domain.tasks(Split.TRAIN, 3), 8)]
    assert set(trained[:4]) == set(trained[4:]) == {f"verifiers/{n}" for n in range(2, 6)}
    assert trained == [task.task_id for task in islice(domain.tasks(Split.TRAIN, 3), 8)]
    evaluated = [task.payload for task in domain.tasks(Split.EVALUATION, 0)]
    assert evaluated == [f'{{"index": {n}}}' for n in range(2, 6)]


def test_rows_may_name_the_places() -> None:
    domain = Verifiers("sums", python="python", rows=({"index": 5},), name="five")
    (task,) = domain.tasks(Split.EVALUATION, 0)
    assert task.payload == '{"index": 5}'


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"count": 1}, "make a virtual environment with .*pip install verifiers"),
        ({"python": "python"}, "count is 0 and held_out_count 0"),
        ({"python": "python", "count": 2, "held_out_count": 2}, "hold out fewer"),
        ({"python": "python", "count": 2, "config": {"a": {1}}}, "has no JSON form"),
        ({"python": "python", "count": 2, "max_turns": 0}, "must be at least 1"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Verifiers("sums", **settings)


def test_the_program_gets_the_settings(tmp_path: Any) -> None:
    python = tmp_path / "python"
    python.touch()
    domain = Verifiers("~/sums", python=str(python), count=1, config={"size": 1}, max_turns=3)
    program = domain.program()
    assert program.python == str(python)
    assert program.handler.endswith("verifiers_child.py:VerifiersHandler")
    assert program.settings == {
        "taskset": "~/sums", "config": {"size": 1}, "success": "", "max_turns": 3
    }  # fmt: skip
    assert domain.version == "verifiers/unknown/sums"
