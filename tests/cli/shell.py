"""The command `rollart` within the test's process, and as a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

from rollart_flow.cli import main

COMMAND = (sys.executable, "-c", "import sys; from rollart_flow.cli import main; sys.exit(main())")
"""The command as a process of its own."""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


def said_by(main: Callable[[Sequence[str]], int], *arguments: str) -> Said:
    """What a command's `main` says to these arguments."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Said(code, out.getvalue(), err.getvalue())


def rollart(*arguments: str) -> Said:
    """Run one command."""
    return said_by(main, *arguments)


@contextmanager
def served_reward(function: str) -> Iterator[str]:
    """The URL of `module:function` behind `rollart reward serve`, until the context ends."""
    command = [*COMMAND, "reward", "serve", function]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)


def refused(said: Said, code: int = 2) -> str:
    """The one line of an error; asserts that it is one, and nothing else was said."""
    assert said.code == code
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
