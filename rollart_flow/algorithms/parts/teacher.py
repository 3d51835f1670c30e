"""The folder of another policy, whose logprobs an algorithm reads."""

from __future__ import annotations

import os

from rollart_flow.errors import SettingsError


def teacher_folder(given: object) -> str:
    """Return the folder or name of a model in Hugging Face's format.

    Args:
        given: the folder, as that of `rollart export`, or a `Policy.from_pretrained(...)`.

    Raises:
        SettingsError: it is neither.
    """
    path = given if isinstance(given, os.PathLike) else getattr(given, "path", given)
    if getattr(given, "revision", "main") != "main":
        raise SettingsError("teacher: give the folder of the model's revision instead of a Policy")
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise SettingsError(
            f"teacher={given!r}: expected the folder of a model, or a Policy.from_pretrained(...)"
        )
    return str(os.fspath(path))
