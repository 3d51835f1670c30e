"""Weight stores by the name that a pipeline uses."""

from rollart_flow.algorithms.checks import check_choice
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.local import LocalWeightStore

WEIGHT_STORES = ("local",)


def open_weights(name: str, uri: str) -> WeightStore:
    """The weight store that a pipeline names.

    Args:
        name: one of `WEIGHT_STORES`.
        uri: where it lies; for `local` a folder.

    Raises:
        SettingsError: no weight store has that name.
    """
    check_choice("train.weights", name, WEIGHT_STORES)
    return LocalWeightStore(uri)
