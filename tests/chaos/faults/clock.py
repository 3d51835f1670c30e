"""Clock steps: libfaketime in a process, with an offset that a file names."""

from pathlib import Path

from tests.chaos.matrix import CannotInjectError

_LIBRARY = "faketime/libfaketimeMT.so.1"


class Clock:
    """The clock of all processes that have its `environment`; monotonic time goes on as it is.

    Args:
        file: names the offset, such as "+1h"; processes look at it at each call.

    Raises:
        CannotInjectError: libfaketime is not installed.
    """

    def __init__(self, file: Path) -> None:
        found = list(Path("/usr/lib").glob(f"*/{_LIBRARY}"))
        if not found:
            raise CannotInjectError("libfaketime is not installed; apt-get install libfaketime")
        self._file = file
        self.step("+0")
        self.environment = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Otherwise every wait of a thread is faked too, and takes milliseconds more.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }

    def step(self, offset: str) -> None:
        """Set the clock to this offset from the true time, such as "-1d"."""
        other = self._file.with_suffix(".new")
        other.write_text(offset + "\n")
        other.replace(self._file)
