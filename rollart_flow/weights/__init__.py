"""Weight stores: versions of a policy, published whole or not at all."""

from rollart_flow.weights.base import Manifest, TensorEntry, WeightCapabilities, WeightStore
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.local import LocalWeightStore
from rollart_flow.weights.registry import (
    WEIGHT_STORES,
    check_weights,
    kept_weights,
    open_weights,
)

__all__ = [
    "WEIGHT_STORES",
    "LocalWeightStore",
    "Manifest",
    "TensorEntry",
    "WeightCapabilities",
    "WeightStore",
    "check_weights",
    "fingerprint",
    "kept_weights",
    "open_weights",
]
