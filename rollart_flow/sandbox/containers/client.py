"""The command-line client of Docker or Podman, called with lists of arguments."""

from __future__ import annotations

import asyncio
import re
import subprocess
from dataclasses import dataclass

from rollart_flow.errors import SandboxError
from rollart_flow.timeouts import timeout

_QUICK_S = 60.0
"""Longest time of a call that moves no image [s]."""
_CWD = "/proc"
"""Where the client starts: the monitor of a Podman container leaves an empty file where it began,
if the container runs out of memory; nobody can make one here."""
_LOG_MESSAGE = re.compile(r'\bmsg="((?:[^"\\]|\\.)*)"')
"""The text in a line of a client's log: time="..." level=error msg="TEXT"."""
PULL_S = 1800.0
"""Longest time of the pull of an image [s]."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program that takes the arguments that Docker's and Podman's clients share."""

    program: str
    """Name on the PATH."""
    owned: str
    """Option of a file system in memory that makes it the user's own."""
    run_options: tuple[str, ...] = ()
    """Options of `run` that only this program has."""

    async def call(self, *arguments: str, timeout_s: float = _QUICK_S) -> str:
        """Return the output of the program.

        Raises:
            SandboxError: it fails, with its message in one line, or takes too long.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=_CWD,
            )
        except OSError as error:
            raise SandboxError(f"{self.program} cannot be run: {error}") from error
        try:
            async with timeout(timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            raise SandboxError(self._too_long(arguments, timeout_s)) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return self._output(process.returncode or 0, stdout, stderr)

    def call_now(self, *arguments: str, stdin: bytes = b"") -> str:
        """Return the output of the program, waiting for it; as `call`."""
        try:
            done = subprocess.run(
                [self.program, *arguments],
                input=stdin,
                capture_output=True,
                cwd=_CWD,
                timeout=_QUICK_S,
                check=False,
            )
        except OSError as error:
            raise SandboxError(f"{self.program} cannot be run: {error}") from error
        except subprocess.TimeoutExpired:
            raise SandboxError(self._too_long(arguments, _QUICK_S)) from None
        return self._output(done.returncode, done.stdout, done.stderr)

    def _too_long(self, arguments: tuple[str, ...], timeout_s: float) -> str:
        return f"{self.program} {arguments[0]} takes longer than {timeout_s:g} s"

    def _output(self, code: int, stdout: bytes, stderr: bytes) -> str:
        if code != 0:
            raise SandboxError(f"{self.program}: {message(stderr.decode(errors='replace'))}")
        return stdout.decode(errors="replace").strip()


def message(text: str) -> str:
    """Return the line of a client's messages that says what went wrong, without its prefixes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = next((line for line in lines if "rror" in line), lines[-1] if lines else "")
    if logged := _LOG_MESSAGE.search(chosen):
        chosen = logged[1].replace('\\"', '"')
    for prefix in ("docker: ", "Error response from daemon: ", "Error: "):
        chosen = chosen.removeprefix(prefix)
    return chosen.rstrip(".") or "it fails without a message"
