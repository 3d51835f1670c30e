"""Scalars of NumPy as Python values.

Environments and rewards often compute with NumPy; NumPy is not imported to find that out.
"""

_PLAIN = frozenset({bool, int, float, type(None)})
"""Types of most values, which need no further look."""


def python_scalar(value: object) -> object:
    """Return the Python value of a NumPy scalar, and any other value unchanged."""
    if type(value) in _PLAIN:
        return value
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value
