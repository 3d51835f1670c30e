"""Ray in the process of a test, where every warning is an error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tolerating_ray() -> Iterator[None]:
    """Ignore what Ray's own modules warn of: they use each other's deprecated settings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray\.")
        yield
