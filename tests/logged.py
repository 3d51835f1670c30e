"""What the code under test logs, for the fixture `logged`.

pytest's own plugin for that goes through the thousands of loggers of all libraries before and after
each phase of each test, which takes 2% of the time of all tests; it is off.
"""

import logging


class Logged(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        """Messages and tracebacks."""
        return "\n".join(map(logging.Formatter().format, self.records))
