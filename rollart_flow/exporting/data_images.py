"""The images of a data set, as files beside its rows."""

from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.store import Run
from rollart_flow.weights.atomic import flush_all


class DataImages:
    """Writes images, each once.

    Args:
        run: the run that has them.
        folder: folder of the files, which is made for the first; None: the rows have no folder.
    """

    def __init__(self, run: Run, folder: Path | None) -> None:
        self._run, self._folder = run, folder

    @property
    def count(self) -> int:
        """Number of images that were written."""
        there = self._folder is not None and self._folder.exists()
        return sum(1 for _ in self._folder.iterdir()) if there and self._folder else 0

    def write(self, names: list[str] | None) -> None:
        """Write the images of a row.

        Raises:
            SettingsError: there is no folder for them.
        """
        if not names:
            return
        if self._folder is None:
            raise SettingsError("the conversations have images; export them to a folder")
        self._folder.mkdir(exist_ok=True)
        for name in names:
            path = self._folder / f"{name}.png"
            if not path.exists():
                path.write_bytes(self._run.image(name).png or b"")

    def close(self) -> None:
        """Force the files to disk."""
        if self._folder is not None and self._folder.exists():
            flush_all(self._folder)
