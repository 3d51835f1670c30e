"""A column that a loss reads takes four files: those that `trainers.batch.columns` lists.

The test adds such a column to a copy of the package, and has it recorded, stored and read there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rollart_flow.trainers.batch import columns

ROOT = Path(__file__).parents[3]

COLUMN = {
    "name": "token_ranks",
    "type": {"type": "array", "elementType": "integer", "containsNull": False},
    "nullable": True,
    "metadata": {"comment": "Index of each action token.", "since": "99", "per": "action token"},
}

RECIPE = '''"""A recipe whose loss reads the added column."""

import torch

from rollart_flow.algorithms.advantages import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens


class Ranked(Loss):
    """Weighs a token by its rank."""

    @property
    def needs(self):
        return frozenset({"token_ranks"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        ranks = tokens.need("token_ranks")
        ratio = torch.ones_like(tokens.advantages)
        return TokenLoss(-ranks * tokens.logprobs, ratio, torch.zeros_like(ranks).bool())


def ranked():
    return Algorithm("ranked", Ranked(), GroupNormalized())
'''

SCRIPT = """
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from rollart_flow.algorithms.recipes.ranked import ranked
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.rows import trajectories_table, trajectory_from_row
from rollart_flow.schema import check
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.batch.training_batch import read_batch
from rollart_flow.types import Action, Assignment, FinishReason, Generation, Outcome, Task

recorder = Recorder()
for ids in ((7, 8, 9), (5, 6)):
    recorder.observe("look", (1, 2))
    drawn = Generation(ids, (-1.0,) * len(ids), (0,) * len(ids), FinishReason.STOP)
    recorder.act(drawn, Action("go"), 0.1)
    recorder.end_turn(1.0)
now = datetime.now(UTC)
done = recorder.trajectory(
    Assignment("t", "g", Task("task", "lake"), 0, 1), AttemptResult(Outcome.COMPLETED),
    created_at=now, finished_at=now, reset_s=0.0, env_version="1", solved=None,
)
stored = check("trajectories", trajectories_table([done]))
assert trajectory_from_row(stored.to_pylist()[0]) == done
batch = stored.append_column("weight", pa.array([1.0])).append_column(
    "advantage", pa.array([[1.0]], pa.list_(pa.float32()))
)
read = read_batch(batch, ranked()).columns.values
assert read["token_ranks"].tolist() == [0, 1, 2, 3, 4], read
config = ModelConfig(
    vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, max_position_embeddings=32,
)
model = Qwen3(config)
model.initialize(0)
result = EmbeddedTrainer(config, model.state_dict(), ranked()).train_step(1, batch)
assert result.grad_norm > 0
print("trained")
"""


def listed() -> list[str]:
    """The four files of the docstring's first list."""
    assert columns.__doc__ is not None
    return re.findall(r"^    (\S+\.(?:json|py))  ", columns.__doc__, re.MULTILINE)


def insert(path: Path, before: str, line: str) -> None:
    """Insert a line in front of the only line that begins with a text."""
    text = path.read_text()
    (place,) = re.finditer(rf"^{re.escape(before)}", text, re.MULTILINE)
    path.write_text(text[: place.start()] + line + "\n" + text[place.start() :])


def test_a_column_that_a_loss_reads_takes_the_four_files_that_the_docstring_lists(
    tmp_path: Path,
) -> None:
    declared, values, filled, recipe = listed()
    package = tmp_path / "rollart_flow"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rollart_flow", package, ignore=ignored)
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    table = json.loads((tmp_path / declared).read_text())
    table["fields"].append(COLUMN)
    (tmp_path / declared).write_text(json.dumps(table))
    insert(
        package / values,
        "\n\ndef unscored",
        "    token_ranks: tuple[int, ...] | None = None\n",
    )
    ranks = "            token_ranks=tuple(range(len(versions))),"
    insert(package / filled, "            solved=solved,", ranks)
    (package / recipe.replace("NAME", "ranked")).write_text(RECIPE)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ran.returncode, ran.stdout) == (0, "trained\n"), ran.stderr
