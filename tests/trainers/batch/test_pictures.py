"""A batch with images: the loss and the gradients are those of plain transformers."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForImageTextToText

from rollart_flow.algorithms import grpo
from rollart_flow.errors import BatchError
from rollart_flow.models.folder import load_pretrained
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from tests.models.vision import FAMILIES, save_tiny_vision
from tests.trainers.pictured import IMAGES, ROWS, pictured_batch, placeholder


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family."""
    return FAMILIES[request.param](tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
def batch(folder: Path) -> pa.Table:
    return pictured_batch(folder)


def reference(folder: Path, batch: pa.Table) -> tuple[Any, list[torch.Tensor]]:
    """Model and logprobs of the action tokens of each row, by plain transformers alone."""
    from rollart_flow.models.hf.config import TransformersConfig

    loader: Any = AutoModelForImageTextToText
    model: Any = loader.from_pretrained(folder)
    shape: Any = load_pretrained(folder)[0]
    assert isinstance(shape, TransformersConfig)
    processor: Any = shape.pictures()
    logprobs = []
    for row, images in zip(batch.to_pylist(), ROWS, strict=True):
        ids, acted = torch.tensor([row["token_ids"]]), torch.tensor(row["action_mask"])
        inputs = dict(processor.features(images)) if images else {}
        kinds = ((ids == placeholder(folder)) & ~acted).long()
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = kinds[:, :-1]
        logits = model(input_ids=ids[:, :-1], **inputs).logits.float()
        each = torch.log_softmax(logits, -1)[0].gather(1, ids[0, 1:, None])[:, 0]
        logprobs.append(each[acted[1:]])
    return model, logprobs


def without_the_sampled_placeholder(folder: Path, batch: pa.Table) -> pa.Table:
    """Plain transformers refuses it, so that the comparison has another token in its place."""
    rows = batch.to_pylist()
    for row in rows:
        row["token_ids"] = [
            90 if acted and token == placeholder(folder) else token
            for token, acted in zip(row["token_ids"], row["action_mask"], strict=True)
        ]
    return pa.Table.from_pylist(rows).replace_schema_metadata(batch.schema.metadata)


def trainer_of(folder: Path, **settings: Any) -> EmbeddedTrainer:
    chosen = RankSettings(optimizer=adamw(1e-3, clip_norm=0.0), **settings)
    return EmbeddedTrainer(*load_pretrained(folder), grpo(), chosen)


def test_logprobs_and_gradients_are_those_of_plain_transformers(
    folder: Path, batch: pa.Table
) -> None:
    batch = without_the_sampled_placeholder(folder, batch)
    model, wanted = reference(folder, batch)
    trainer = trainer_of(folder)

    scored = trainer.recompute_old_logprobs(batch)["old_logprobs"].to_pylist()

    for row, expected in zip(scored, wanted, strict=True):
        assert row == pytest.approx(expected.tolist(), abs=1e-5)
    result = trainer.train_step(1, batch)
    count = sum(map(len, wanted))
    ratios = [torch.exp(each + 1.0) for each in wanted]
    clipped = [ratio.clamp(0.8, 1.2) for ratio in ratios]
    advantages = (1.0, 0.0, -1.0)
    loss: Any = -sum(
        torch.minimum(ratio * gain, bound * gain).sum()
        for ratio, bound, gain in zip(ratios, clipped, advantages, strict=True)
    ) / count  # fmt: skip
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    assert result.loss == pytest.approx(loss.item(), abs=1e-5)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_a_step_changes_both_towers(folder: Path, batch: pa.Table) -> None:
    trainer = trainer_of(folder)
    before = trainer.weights()

    trainer.train_step(1, batch)

    after = trainer.weights()
    embeddings = [name for name in after if "patch_embed" in name and name.endswith("weight")]
    queries = [name for name in after if name.endswith("layers.0.self_attn.q_proj.weight")]
    assert len(embeddings) == 1
    assert queries
    for name in embeddings + queries:
        assert not torch.equal(before[name], after[name]), name


def test_micro_batches_and_rows_with_a_sampled_placeholder_give_the_same_logprobs(
    folder: Path, batch: pa.Table
) -> None:
    one, other = (
        trainer_of(folder, micro_batch_tokens=tokens).recompute_old_logprobs(batch)
        for tokens in (1, 10_000)
    )
    for first, second in zip(
        *(each["old_logprobs"].to_pylist() for each in (one, other)), strict=True
    ):
        assert first == pytest.approx(second, abs=1e-5)


def test_a_row_whose_placeholders_are_not_those_of_its_images_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_vision(tmp_path / "model")
    batch = pictured_batch(folder)
    names = pa.array([[IMAGES[1].image_id], None, None], pa.list_(pa.string()))
    at = batch.column_names.index("images")

    with pytest.raises(BatchError, match="trajectory 0 has 4 placeholders"):
        trainer_of(folder).recompute_old_logprobs(batch.set_column(at, "images", names))
    with pytest.raises(BatchError, match="lacks the file"):
        trainer_of(folder).recompute_old_logprobs(batch.replace_schema_metadata(None))
