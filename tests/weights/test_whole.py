"""A version that is an adapter is read as whole weights, or refused in one line."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.models.lora import adapter_names
from rollart_flow.weights import LocalWeightStore
from rollart_flow.weights.base import AdapterEntry, Manifest
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.whole import AdapterBase, InFloat32, adapter_of, merged_version

ENTRY = AdapterEntry(base=3, rank=2, alpha=8)
DOWN, UP = adapter_names("layer")
MATRICES = {DOWN: torch.full((2, 4), 0.5), UP: torch.full((3, 2), 0.25)}
BASE = {
    "layer.weight": torch.ones(3, 4, dtype=torch.bfloat16),
    "norm.weight": torch.ones(4, dtype=torch.bfloat16),
}


def test_changed_weights_are_those_of_the_trainer_in_float32_and_others_those_of_the_base() -> None:
    whole = merged_version(MATRICES, ENTRY, AdapterBase(BASE, "policy"))
    assert torch.equal(whole["layer.weight"], torch.full((3, 4), 1 + 4 * 2 * 0.5 * 0.25))
    assert whole["norm.weight"] is BASE["norm.weight"]
    assert {tensor.dtype for tensor in InFloat32(whole).values()} == {torch.float32}
    assert len(InFloat32(whole)) == len(BASE)


@pytest.mark.parametrize(
    ("base", "what"),
    [({"norm.weight": torch.ones(4)}, "other names"), ({"layer.weight": torch.ones(4, 4)}, "size")],
    ids=str,
)
def test_a_wrong_base_is_refused(base: dict[str, torch.Tensor], what: str) -> None:
    with pytest.raises(WeightsError, match="adapter over version 3 is for another model") as caught:
        merged_version(MATRICES, ENTRY, AdapterBase(base, "policy"))
    assert "\n" not in str(caught.value), what


def test_an_adapter_is_merged_only_with_the_weights_that_it_was_trained_over() -> None:
    entry = replace(ENTRY, base_checksum=fingerprint(BASE))
    whole = merged_version(MATRICES, entry, AdapterBase(BASE, "policy"))
    assert whole.keys() == BASE.keys()
    other = {**BASE, "norm.weight": torch.zeros(4, dtype=torch.bfloat16)}
    refused = "the adapter was trained over other weights than those in policy: .*restore"
    with pytest.raises(WeightsError, match=refused) as caught:
        merged_version(MATRICES, entry, AdapterBase(other, "policy"))
    assert "\n" not in str(caught.value)


def test_a_manifest_of_an_earlier_release_names_no_checksum(tmp_path: Path) -> None:
    raw = asdict(LocalWeightStore(tmp_path).publish(1, MATRICES, adapter=ENTRY))
    del raw["adapter"]["base_checksum"]
    assert Manifest.from_json(raw).adapter == ENTRY


def test_a_stored_version_says_what_it_is(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, BASE)
    store.publish(2, MATRICES, adapter=ENTRY)
    store.publish(3, MATRICES)
    assert adapter_of(store, 1, store.read(1)) is None
    assert adapter_of(store, 2, store.read(2)) == ENTRY
    with pytest.raises(WeightsError, match="version 3 holds an adapter, but its manifest names no"):
        adapter_of(store, 3, store.read(3))
