"""Models of transformers give the same numbers in packed rows as transformers gives alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging as transformers_logging

from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.folder import load_folder, load_pretrained, read_config, save_folder
from rollart_flow.models.language_model import LanguageModel
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.trainers.batch.micro_batch import packed_tokens
from tests.models.hf.tiny import ARCHITECTURES, VOCABULARY, plain_model, write_model

LENGTHS = (9, 14, 5, 14, 11)
SHARED = 4
"""Tokens that the first chains begin with."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()


@pytest.fixture(params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model of each architecture."""
    write_model(request.param, tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path) -> LanguageModel:
    """The model of a folder, as trainers compute it."""
    tensors = load_pretrained(folder)[1]
    model = read_config(folder, TRANSFORMERS).build()
    model.load_stored(tensors)
    return model


def chains() -> list[torch.Tensor]:
    """Token chains, of which three begin alike."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in LENGTHS]
    for chain in made[1:3]:
        chain[:SHARED] = made[0][:SHARED]
    return made


def test_packed_rows_are_those_of_transformers(folder: Path) -> None:
    model, plain, rows = load(folder), plain_model(folder), chains()
    wanted = torch.cat([plain(input_ids=row[None]).logits[0] for row in rows])
    torch.testing.assert_close(_logits(model, rows), wanted, atol=1e-5, rtol=1e-5)


def test_gradients_are_those_of_transformers(folder: Path) -> None:
    model, plain, rows = load(folder), plain_model(folder), chains()
    _logits(model, rows).logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    sum(plain(input_ids=row[None]).logits.logsumexp(-1).sum() for row in rows).backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        wanted = theirs[name.removeprefix("causal.")].grad
        torch.testing.assert_close(parameter.grad, wanted, atol=1e-4, rtol=1e-4)


def test_a_folder_written_here_is_read_by_transformers(folder: Path, tmp_path: Path) -> None:
    config, tensors = load_pretrained(folder)
    save_folder(tmp_path / "ours", config, tensors, tokenizer_files(folder))
    ours, theirs = plain_model(tmp_path / "ours"), plain_model(folder)
    row = chains()[0][None]
    assert torch.equal(ours(input_ids=row).logits, theirs(input_ids=row).logits)
    assert load_folder(tmp_path / "ours")[0] == config


def test_the_layers_are_found(folder: Path) -> None:
    assert len(load(folder).blocks()) == 2


def _logits(model: LanguageModel, rows: list[torch.Tensor]) -> torch.Tensor:
    """Logits of all tokens, row after row, [tokens, vocabulary]."""
    lengths = np.array([len(row) for row in rows])
    starts = np.cumsum(lengths) - lengths
    if not model.packs:
        return torch.cat([model.logits(model(row[None]))[0] for row in rows])
    ids, places, packing = packed_tokens(torch.cat(rows).numpy(), starts, lengths)
    hidden = model(torch.from_numpy(ids), torch.from_numpy(places), packing)
    return model.logits(hidden)
