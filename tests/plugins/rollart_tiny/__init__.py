"""A package that adds one variant of each family; each notes in a file that it was used."""

import os


def used(variant: str) -> None:
    """Add a line to the file that `ROLLART_TINY_USED` names."""
    with open(os.environ["ROLLART_TINY_USED"], "a") as notes:
        notes.write(f"{variant}\n")
