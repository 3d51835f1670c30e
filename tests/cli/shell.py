"""The command `rollart` within the test's process: exit code, standard output, standard error."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

from rollart_flow.cli import main


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


def rollart(*arguments: str) -> Said:
    """Run one command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Said(code, out.getvalue(), err.getvalue())


def refused(said: Said, code: int = 2) -> str:
    """The one line of an error; asserts that it is one, and nothing else was said."""
    assert said.code == code
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
