"""A reader who follows a page: saves its files, runs its Python and its commands in order.

Each page has a folder and one Python namespace. The folder holds the runs that the pages read:
`mine`, a copy of a stored run. The repository's pipelines train for minutes, so that `rollart run`
and `rollart fork` of them are checked as far as reading the file with its settings, and leave such
a copy. Files that the page itself has the reader save are run, with fewer steps; their forks are
prepared and not trained.
"""

import ast
import builtins
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import typer
import yaml

from rollart_flow.cli.app import app
from rollart_flow.cli.arguments import settings_from
from rollart_flow.pipeline import load_pipeline
from rollart_flow.pipeline.loading import run_source
from rollart_flow.runner.fork import prepare_fork
from rollart_flow.store import open_run, resolve
from tests.cli.shell import rollart
from tests.docs.pages import OUTPUT, ROOT, Block

PICTURES = {"text", "mermaid"}
ELSEWHERE = {"ray", "pip", "uv", "source", "python", "export"}
"""Programs of a `# needs:` block that are not checked further."""
SHORT = ["-s", "steps=2", "-s", "every=2", "-s", "episodes=4", "-s", "checkpoint_every=2"]
RECORDED = ROOT / "tests" / "simulation" / "data" / "two-domains"


class Session:
    """One page being followed.

    Args:
        folder: current directory of the test, with `runs/mine`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, object] = {"__name__": "page"}
        self._saved: set[str] = set()
        self._output = ""

    def follow(self, block: Block) -> None:
        """Run or check one block; asserts that it works."""
        if block.title == OUTPUT:
            _assert_output(block, self._output)
        elif block.language == "python":
            self._python(block)
        elif block.language == "yaml":
            assert yaml.safe_load(block.text), block
            if block.title:
                (self._folder / block.title).write_text(block.text)
        elif block.language == "json":
            assert all(map(json.loads, block.text.splitlines())), block
            (self._folder / block.title).write_text(block.text)
        elif block.language not in PICTURES:
            assert block.language == "shell", f"{block}: no test runs {block.language}"
            self._output = "".join(self._command(block, words) for words in commands(block))

    def _python(self, block: Block) -> None:
        if block.title:
            self._save(block)
        elif block.needs is not None:
            _check_names(block, set(self._names))
        else:
            said = StringIO()
            with redirect_stdout(said):
                exec(compile(block.text, str(block), "exec"), self._names)
            self._output = said.getvalue()

    def _save(self, block: Block) -> None:
        """Save a file of the page; one of the repository must be the repository's."""
        if (ROOT / block.title).exists():
            assert block.text == (ROOT / block.title).read_text(), block
            return
        (self._folder / block.title).write_text(block.text)
        run_source(block.text, block.title)
        self._saved.add(block.title)

    def _command(self, block: Block, words: list[str]) -> str:
        program, *rest = words
        if program == "make":
            assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), block
            return ""
        if block.needs is not None:
            assert program in {"rollart", *ELSEWHERE}, f"{block}: {program}"
            if program == "rollart":
                parse(rest)
            return ""
        assert program == "rollart", f"{block}: {program} runs in no test; say what it needs"
        if rest[0] in ("run", "fork"):
            return self._train(block, rest)
        said = rollart(*self._meant(rest))
        assert said.code == 0, (str(block), words, said.err)
        return said.err + said.out

    def _train(self, block: Block, words: list[str]) -> str:
        given = parse(words)
        changes = settings_from(given["changes"])
        own = given["file"] in self._saved
        loaded = load_pipeline(given["file"] if own else ROOT / given["file"], changes)
        assert loaded.overrides == changes, block
        if own and words[0] == "fork":
            prepare_fork(resolve(given["run"]), given["step"], loaded, name=given["name"])
        elif own:
            said = rollart(*words, *SHORT, *_inline(words))
            assert said.code == 0, (str(block), words, said.err)
            return said.err + said.out
        elif given["name"] not in (None, "mine"):
            shutil.copytree("runs/mine", f"runs/{given['name']}")
        return ""

    def _meant(self, words: list[str]) -> list[str]:
        """Words of a command with the names of the page replaced by those of its runs."""
        if words[0] == "simulate":
            steps = "3" if "mine" in words else "1"
            words = [str(RECORDED) if word == "mine" else word for word in words]
            return [*words, "--steps", steps]
        return [_best_trajectory(words[1]) if word == "ID" else word for word in words]


def commands(block: Block) -> Iterator[list[str]]:
    """Words of each command of a shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def parse(words: list[str]) -> dict[str, Any]:
    """Arguments and options of a command, parsed but not run; files must exist."""
    name, *arguments = words
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    for word in arguments:
        assert not word.endswith(".py") or Path(word).exists(), word
    given: dict[str, Any] = command.make_context(name, list(arguments)).params
    return given


def _inline(words: list[str]) -> list[str]:
    return [] if "--executor" in words else ["--executor", "inline"]


def _best_trajectory(run: str) -> str:
    """A trajectory that was trained on, solved if one was."""
    stored = open_run(run)
    trained = stored.trajectories.join(stored.batches, on="trajectory_id", how="semi")
    best: str = trained.sort("reward", descending=True).head(1).collect()["trajectory_id"].item()
    return best


def _check_names(block: Block, known: set[str]) -> None:
    """Run the imports of Python that cannot run, and look every other name up."""
    tree = ast.parse(block.text, str(block))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names: dict[str, object] = {}
    exec(compile(ast.Module([*imports], []), str(block), "exec"), names)
    nodes = list(ast.walk(tree))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    used = {n.id for n in nodes if isinstance(n, ast.Name)}
    assert used <= known | bound | set(names) | set(dir(builtins)), block


def _assert_output(block: Block, output: str) -> None:
    """Each line of the block stands in the output, in order; `...` stands for other lines."""
    lines = iter([_masked(line) for line in output.splitlines()])
    for line in block.text.splitlines():
        if line.strip() not in ("", "..."):
            assert _masked(line) in lines, f"{block}: {line!r} is not in the output:\n{output}"


def _masked(line: str) -> str:
    """A line without what differs between runs: numbers, curves, folders, widths."""
    line = re.sub(r"(/[\w.-]+){2,}", "/", line)
    line = re.sub(r"[▁-█]+", "~", line)
    line = re.sub(r"─+", "─", line)
    line = re.sub(r"\d[\d.]*", "#", line)
    return " ".join(line.split())
