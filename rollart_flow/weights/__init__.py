"""Weight stores: versions of a policy, published whole or not at all.

Names are imported at first use, except `fingerprint`, whose module has the same name.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports
from rollart_flow.weights.fingerprint import fingerprint

if TYPE_CHECKING:
    from rollart_flow.weights.base import Manifest, TensorEntry, WeightCapabilities, WeightStore
    from rollart_flow.weights.local import LocalWeightStore
    from rollart_flow.weights.registry import (
        WEIGHT_TRANSPORTS,
        open_weights,
        stored_weights,
    )

__all__ = [
    "WEIGHT_TRANSPORTS", "LocalWeightStore", "Manifest", "TensorEntry", "WeightCapabilities",
    "WeightStore", "fingerprint", "open_weights", "stored_weights",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "local": "LocalWeightStore",
        "base": "Manifest TensorEntry WeightCapabilities WeightStore",
        "registry": "WEIGHT_TRANSPORTS open_weights stored_weights",
    },
)
