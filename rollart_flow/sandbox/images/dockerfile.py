"""Simple Dockerfiles: FROM, ENV, WORKDIR, USER, RUN and COPY over one base.

Everything else is refused in one line that names it, so that no image lacks a step silently.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.errors import ImageError

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command of one RUN."""

    command: str | tuple[str, ...]
    """A line for `/bin/sh`, or a program with its arguments."""
    env: Mapping[str, str]
    workdir: str


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Files and folders of the context for one path of the image."""

    sources: tuple[str, ...]
    """Paths relative to the context."""
    target: str
    """Absolute path; a folder if it ends with a slash."""


@dataclass(frozen=True, slots=True)
class FolderStep:
    """The folder of one WORKDIR."""

    path: str


Step = RunStep | CopyStep | FolderStep


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile whose variables are replaced."""

    base: str
    """Name after FROM."""
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    """Variables of boxes, without those of the base."""
    workdir: str
    """Last WORKDIR; empty if there is none."""


def base_of(text: str) -> str:
    """Return the name after FROM.

    Raises:
        ImageError: the text does not begin with FROM and one name.
    """
    for number, word, rest in _instructions(text):
        names = rest.split()
        if word != "FROM" or len(names) != 1:
            raise ImageError(f"Dockerfile, line {number}: it begins with FROM and one name")
        return names[0]
    raise ImageError("Dockerfile: it is empty")


def parse(text: str, base_env: Mapping[str, str], base_workdir: str) -> Dockerfile:
    """Return the steps of a Dockerfile.

    Args:
        text: its contents.
        base_env: variables of the base.
        base_workdir: work folder of the base; empty means `/`.

    Raises:
        ImageError: names the line that is wrong or not supported.
    """
    reader = _StepReader(base_env, base_workdir)
    base = base_of(text)
    for number, word, rest in [*_instructions(text)][1:]:
        handler = getattr(reader, f"take_{word.lower()}", None)
        if handler is None:
            raise ImageError(
                f"Dockerfile, line {number}: {word[:40]} is not supported; FROM once, ENV, "
                "WORKDIR, USER, RUN and COPY are"
            )
        try:
            handler(rest)
        except (ValueError, TypeError) as error:
            raise ImageError(f"Dockerfile, line {number}: {word}: {error}") from error
    return Dockerfile(base, tuple(reader.steps), reader.env, reader.workdir)


class _StepReader:
    """Takes one instruction after the other."""

    def __init__(self, base_env: Mapping[str, str], base_workdir: str) -> None:
        self.steps: list[Step] = []
        self.env: dict[str, str] = {}
        self.workdir = base_workdir
        self._base_env = {"PATH": _PATH, **base_env}

    def take_env(self, rest: str) -> None:
        """Read `NAME=VALUE ...`, or `NAME VALUE` with everything up to the end of the line."""
        if "=" in rest.split(maxsplit=1)[0]:
            pairs = [word.partition("=") for word in shlex.split(rest)]
            if any(not equals or not name for name, equals, _ in pairs):
                raise ValueError("write NAME=VALUE for each variable")
        else:
            name, _, value = rest.partition(" ")
            pairs = [(name, "=", value.strip())]
        self.env.update({name: self._replaced(value) for name, _, value in pairs})

    def take_workdir(self, rest: str) -> None:
        """Read a path, relative to the one before."""
        self.workdir = self._path(self._replaced(rest.strip("\"'")))
        self.steps.append(FolderStep(self.workdir))

    def take_user(self, rest: str) -> None:
        """Read a name, which changes nothing: the one user of a box owns all files."""
        if len(rest.split()) != 1:
            raise ValueError("it takes one name")

    def take_run(self, rest: str) -> None:
        """Read a line for the shell, or a JSON list."""
        if rest.startswith("--") or "<<" in rest.split(" ")[0]:
            raise ValueError("options and here-documents are not supported")
        command = tuple(_json_words(rest)) if rest.startswith("[") else rest
        self.steps.append(RunStep(command, dict(self.env), self.workdir or "/"))

    def take_copy(self, rest: str) -> None:
        """Read sources and a target."""
        words = _json_words(rest) if rest.startswith("[") else shlex.split(rest)
        words = [self._replaced(word) for word in words]
        if len(words) < 2 or words[0].startswith("--"):
            raise ValueError("it takes sources and a target, without options")
        *sources, target = words
        for source in sources:
            if "*" in source or "?" in source or "[" in source:
                raise ValueError(f"{source!r} is a pattern; name files and folders")
        folder = target.endswith("/") or len(sources) > 1 or target in (".", "./")
        place = self._path(target)
        self.steps.append(CopyStep(tuple(sources), f"{place.rstrip('/')}/" if folder else place))

    def _path(self, path: str) -> str:
        whole = Path("/", self.workdir, path)
        if ".." in whole.parts:
            raise ValueError(f"{path!r} has '..'")
        return str(whole)

    def _replaced(self, text: str) -> str:
        known = {**self._base_env, **self.env}
        return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], ""), text)


def _json_words(text: str) -> list[str]:
    words = json.loads(text)
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        raise ValueError("the JSON list has something else than words")
    return words


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, instruction in capitals and the rest, with continued lines joined."""
    first, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not joined):
            continue
        first = first if joined else number
        continues = line.rstrip().endswith("\\")
        joined += line.rstrip().removesuffix("\\") + (" " if continues else "")
        if not continues:
            word, _, rest = joined.strip().partition(" ")
            yield first, word.upper(), rest.strip()
            joined = ""
    if joined.strip():
        word, _, rest = joined.strip().partition(" ")
        yield first, word.upper(), rest.strip()
