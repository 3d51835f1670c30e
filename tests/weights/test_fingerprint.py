"""The digest of a set of tensors changes with everything that makes them what they are."""

import hashlib

import torch

from rollart_flow.weights import fingerprint


def test_order_place_and_gradient_do_not_matter() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)
    expected = fingerprint({"a": a, "b": b})
    assert fingerprint({"b": b.clone(), "a": torch.nn.Parameter(a.clone())}) == expected
    assert fingerprint({"a": a.T.contiguous().T, "b": b}) == expected


def test_name_dtype_shape_and_bytes_matter() -> None:
    tensors = {
        "base": {"a": torch.zeros(4)},
        "name": {"b": torch.zeros(4)},
        "shape": {"a": torch.zeros(2, 2)},
        "dtype": {"a": torch.zeros(4, dtype=torch.int32)},
        "bytes": {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
        "more": {"a": torch.zeros(4), "b": torch.zeros(0)},
        "scalar": {"a": torch.tensor(0.0)},
        "none": {},
    }
    assert len({fingerprint(t) for t in tensors.values()}) == len(tensors)


def test_bytes_do_not_run_into_the_next_tensor() -> None:
    split = {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(1, dtype=torch.uint8)}
    other = {"a": torch.zeros(1, dtype=torch.uint8), "b": torch.zeros(3, dtype=torch.uint8)}
    assert fingerprint(split) != fingerprint(other)


def test_the_digest_is_stable_across_releases() -> None:
    header = b"('a', 'float32', (2,))"
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    digest.update(bytes.fromhex("0000803f00000040"))
    assert fingerprint({"a": torch.tensor([1.0, 2.0])}) == digest.hexdigest()
