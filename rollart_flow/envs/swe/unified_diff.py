"""Unified diffs between trees: made, and applied again exactly.

A diff has the form of `git diff`: text files only, with headers for new and deleted files, renames
and the executable bit. `apply_diff` uses no fuzz: every line of context must match, so that a diff
either gives exactly the files that it was made from, or is refused. It touches no file of the host.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rollart_flow.envs.swe.file_tree import FileTree, TreeFile, is_kept_path
from rollart_flow.errors import DiffError

_NO_NEWLINE = "\\ No newline at end of file"
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_MOST_COMPARED_LINES = 20_000
"""Lines of a file from which it is replaced as a whole, since comparing may take their square."""
_ODD_MODE = re.compile(r"^(?:new|old|deleted)(?: file)? mode (?!100(?:644|755)$)")
_HEADER = re.compile(r"^diff --git a/(.*) b/(.*)$")


@dataclass(frozen=True, slots=True)
class Difference:
    """The change between two trees."""

    text: str
    """Unified diff; empty if no text file differs."""
    paths: tuple[str, ...]
    """Files that the diff changes."""
    left_out: tuple[str, ...] = ()
    """Changed files that are no text, which the diff leaves as they were."""


def make_diff(before: FileTree, after: FileTree) -> Difference:
    """Return the change from one tree to another, files in the order of their paths."""
    pieces, paths, left_out = [], [], []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        texts = [_text(file) for file in (old, new)]
        if None in texts:
            left_out.append(path)
            continue
        pieces.append(_file_diff(path, old, new, texts[0] or "", texts[1] or ""))
        paths.append(path)
    return Difference("".join(pieces), tuple(paths), tuple(left_out))


def apply_diff(tree: FileTree, text: str) -> dict[str, TreeFile]:
    """Return a tree with a diff applied.

    Raises:
        DiffError: the diff is malformed, does not fit, or names a path outside of the tree.
    """
    result = dict(tree)
    for change in _parsed(text):
        _apply_one(result, change)
    return result


def changed_paths(text: str) -> tuple[str, ...]:
    """Return the paths that a diff names, each once.

    Raises:
        DiffError: the diff is malformed.
    """
    named = [path for change in _parsed(text) for path in (change.old, change.new) if path]
    return tuple(dict.fromkeys(named))


@dataclass(slots=True)
class _Change:
    """One file of a diff."""

    old: str | None
    """Path before; None for a new file."""
    new: str | None
    """Path after; None for a deleted file."""
    executable: bool | None = None
    """Executable bit after; None if it does not change."""
    hunks: list[tuple[int, list[str]]] = field(default_factory=list)
    """First line before the change, from 1, and the lines with their signs."""


def _text(file: TreeFile | None) -> str | None:
    """Return the text of a file; None if it is no text that a diff can hold."""
    if file is None:
        return ""
    if b"\0" in file.data:
        return None
    try:
        return file.data.decode()
    except UnicodeDecodeError:
        return None


def _file_diff(path: str, old: TreeFile | None, new: TreeFile | None, a: str, b: str) -> str:
    lines = [f"diff --git a/{path} b/{path}"]
    if old is None and new is not None:
        lines.append(f"new file mode {_mode(new)}")
    elif new is None and old is not None:
        lines.append(f"deleted file mode {_mode(old)}")
    elif old is not None and new is not None and old.executable != new.executable:
        lines += [f"old mode {_mode(old)}", f"new mode {_mode(new)}"]
    if a != b:
        lines.append("--- " + ("/dev/null" if old is None else f"a/{path}"))
        lines.append("+++ " + ("/dev/null" if new is None else f"b/{path}"))
        for line in _hunks(_lines(a), _lines(b)):
            lines += [line[:-1]] if line.endswith("\n") else [line, _NO_NEWLINE][: _ends(line)]
    return "\n".join(lines) + "\n"


def _hunks(old: list[str], new: list[str]) -> list[str]:
    """Return the hunks between two files, headers without a newline."""
    if max(len(old), len(new)) > _MOST_COMPARED_LINES:
        before, after = min(1, len(old)), min(1, len(new))
        header = f"@@ -{before},{len(old)} +{after},{len(new)} @@"
        return [header, *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    return list(difflib.unified_diff(old, new, n=3, lineterm=""))[2:]


def _ends(line: str) -> int:
    """Number of lines that one without a newline takes: a hunk's header has none either."""
    return 1 if line.startswith("@@") else 2


def _mode(file: TreeFile) -> str:
    return "100755" if file.executable else "100644"


def _lines(text: str) -> list[str]:
    """Split at "\\n" alone, whatever else Python counts as the end of a line."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _parsed(text: str) -> Iterator[_Change]:
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        match = _HEADER.match(lines[place])
        if match is None:
            if lines[place].strip():
                raise DiffError(f"line {place + 1} of the diff is no header of a file")
            place += 1
            continue
        change, place = _one_change(match, lines, place + 1)
        for path in (change.old, change.new):
            if path is not None and not is_kept_path(path):
                raise DiffError(f"the diff names {path!r}, which is no path of the task")
        yield change


def _one_change(header: re.Match[str], lines: Sequence[str], place: int) -> tuple[_Change, int]:
    change = _Change(header[1], header[2])
    while place < len(lines) and not _HEADER.match(lines[place]):
        line = lines[place]
        if line.startswith("@@"):
            place = _hunk(change, lines, place)
            continue
        if line.startswith(("GIT binary patch", "Binary files")):
            raise DiffError(f"line {place + 1} of the diff: a change of a binary file")
        if _ODD_MODE.match(line):
            raise DiffError(f"line {place + 1} of the diff: a link or another odd file")
        if line.startswith("new file mode "):
            change.old, change.executable = None, line.endswith("755")
        elif line.startswith("deleted file mode "):
            change.new = None
        elif line.startswith("new mode "):
            change.executable = line.endswith("755")
        elif line.strip() and not line.startswith(_IGNORED):
            raise DiffError(f"line {place + 1} of the diff is unknown: {line[:60]!r}")
        place += 1
    return change, place


_IGNORED = (
    "--- ", "+++ ", "index ", "old mode ", "similarity index ", "dissimilarity index ",
    "rename from ", "rename to ", "\\ ",
)  # fmt: skip


def _hunk(change: _Change, lines: Sequence[str], place: int) -> int:
    """Read a hunk, whose header counts its lines; return the place after it."""
    match = _HUNK.match(lines[place])
    if match is None:
        raise DiffError(f"line {place + 1} of the diff is no header of a hunk")
    start, old_left, new_left = int(match[1]), int(match[2] or 1), int(match[4] or 1)
    body: list[str] = []
    first = place + 1
    place = first
    while old_left > 0 or new_left > 0:
        line = lines[place] if place < len(lines) else ""
        sign = line[:1] or " "  # some editors strip the blank of an empty line of context
        if place >= len(lines) or sign not in " +-\\":
            raise DiffError(f"line {first} of the diff: the hunk ends too early")
        if sign == "\\":
            _drop_newline(body)
        else:
            old_left -= sign in " -"
            new_left -= sign in " +"
            body.append(f"{sign}{line[1:]}\n")
        place += 1
    if place < len(lines) and lines[place].startswith("\\"):
        _drop_newline(body)
        place += 1
    change.hunks.append((start, body))
    return place


def _drop_newline(body: list[str]) -> None:
    if body:
        body[-1] = body[-1].removesuffix("\n")


def _apply_one(tree: dict[str, TreeFile], change: _Change) -> None:
    path = change.new or change.old or ""
    if change.old is None:
        if path in tree:
            raise DiffError(f"the diff creates {path!r}, which exists")
        before = TreeFile(b"", bool(change.executable))
    elif change.old not in tree:
        raise DiffError(f"the diff changes {change.old!r}, which does not exist")
    else:
        before = tree.pop(change.old)
    if change.hunks:
        before = TreeFile(_patched(path, before.data, change.hunks), before.executable)
    if change.new is not None:
        executable = before.executable if change.executable is None else change.executable
        tree[change.new] = TreeFile(before.data, executable)


def _patched(path: str, data: bytes, hunks: Sequence[tuple[int, list[str]]]) -> bytes:
    old = _lines(data.decode(errors="surrogateescape"))
    result: list[str] = []
    done = 0
    for start, body in hunks:
        removed = [line[1:] for line in body if line[0] in " -"]
        begin = start - 1 if removed else start
        if begin < done or old[begin : begin + len(removed)] != removed:
            raise DiffError(f"the diff does not fit {path!r} at line {start}")
        result += old[done:begin]
        result += [line[1:] for line in body if line[0] in " +"]
        done = begin + len(removed)
    return "".join(result + old[done:]).encode(errors="surrogateescape")
