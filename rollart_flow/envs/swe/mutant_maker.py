"""Tasks from a Python package: a seeded fault that the package's own tests notice.

The package's tests run once more than they have to, so that tests that are not stable are left out.
A fault is admitted if at least one test fails with it that passes without it, some test still
passes, and the session ends by itself. The solution is the change taken back, so that a check of
the task costs nothing to write.
"""

import ast
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from rollart_flow.envs.swe.file_tree import FileTree, TreeFile, read_source, tree_digest
from rollart_flow.envs.swe.judging import verifier_digest
from rollart_flow.envs.swe.mutations import Mutation, mutations
from rollart_flow.envs.swe.package_build import with_build
from rollart_flow.envs.swe.protected_files import is_protected, is_test_path, without_tests
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore
from rollart_flow.envs.swe.unified_diff import make_diff
from rollart_flow.envs.swe.verifier import TestResult, TestRun, run_tests
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.base import SandboxSpec

if TYPE_CHECKING:
    from rollart_flow.sandbox.boxes import Boxes

_TRIES = 8
"""Faults that are tried for each one that is wanted."""
_NO_CODE = frozenset({"setup.py", "docs", "doc", "examples", "benchmarks", "bench"})
_SHOWN_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class MutantMaker:
    """Makes tasks from packages and keeps them in a store.

    Args:
        store: folder of the tasks.
        boxes: source of boxes for the tests.
        spec: the box of `verifier.box_spec`.
        per_package: tasks that are made of each package, if it has as many faults.
        seed: decides which faults.
        timeout_s: limit of one session of the package's tests [s].
        shows_tests: whether agents see the tests.
        packages: distributions beside pytest, as for `box_spec`.
        builds: whether packages are built first, see `package_build`.
    """

    store: SweTaskStore
    boxes: "Boxes"
    spec: SandboxSpec
    per_package: int
    seed: int
    timeout_s: float
    shows_tests: bool = False
    packages: tuple[str, ...] = ()
    builds: bool = False

    def made(self, source: Path) -> tuple[str, ...]:
        """Return the digests of a package's tasks; make them unless they are in the store.

        Args:
            source: a source archive, or a folder with the package and its tests.

        Raises:
            SettingsError: the source cannot be read, or no test of it passes in a box.
            SandboxError: a box could not be started, or has ended.
        """
        tree = read_source(source).files
        manifest = self.store.folder / "mutants" / f"{self._key(tree)}.json"
        if manifest.exists():
            return tuple(json.loads(manifest.read_bytes()))
        name = package_name(tree, source)
        if self.builds:
            try:
                tree = with_build(tree, self.boxes, self.spec, self.store.folder / "wheels")
            except SettingsError as error:
                raise SettingsError(f"{source}: {error}") from error
        digests = tuple(self.store.add(task) for task in self._tasks(name, tree))
        if not digests:
            raise SettingsError(f"{source}: no fault was found that its tests notice")
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps(digests))
        return digests

    def _key(self, tree: FileTree) -> str:
        about = (
            tree_digest(tree), self.per_package, self.seed, self.shows_tests, self.packages,
            self.builds,
            verifier_digest(self.packages), Path(__file__).read_text(),
        )  # fmt: skip
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def _tasks(self, name: str, tree: FileTree) -> list[SweTask]:
        files = [path for path in sorted(tree) if _holds_tests(path)]
        began = monotonic()
        first = self._run(tree, files, self.timeout_s)
        limit = min(self.timeout_s, 10 + 10 * (monotonic() - began))
        second = self._run(tree, files, self.timeout_s, _passed(first))
        runs = [first, second]
        provable = {test for test, ended in second.copies.items() if ended}
        stable = {
            test: max(run.tests[test].seconds for run in runs)
            for test in runs[0].tests
            if all(test in run.tests and run.tests[test].passed for run in runs)
        }
        if not stable:
            reason = next(iter(runs[0].errors.values()), "none was found")
            raise SettingsError(f"{name}: no test of it passes in a box: {reason}")
        digest = self.store.add_tree(tree)
        found: list[SweTask] = []
        candidates = _candidates(tree, Random(f"{self.seed}/{digest}"))
        for mutation in candidates[: _TRIES * self.per_package]:
            if len(found) == self.per_package:
                break
            run = self._run(_with(tree, mutation), files, limit)
            task = self._task(name, tree, digest, mutation, run, stable, provable)
            if task is not None:
                found.append(task)
        return found

    def _run(
        self, tree: FileTree, files: Sequence[str], timeout_s: float, copied: Sequence[str] = ()
    ) -> TestRun:
        """Run the tests, with copies of all of some."""
        return run_tests(
            self.boxes, self.spec, tree, files, timeout_s, copied, most_copies=len(copied)
        )

    def _task(
        self,
        name: str,
        tree: FileTree,
        digest: str,
        mutation: Mutation,
        run: TestRun,
        stable: dict[str, float],
        provable: set[str],
    ) -> SweTask | None:
        """Return the task of a fault; None if it is not admitted."""
        failed = {test: s for test, s in stable.items() if _fails(run.tests.get(test))}
        passed = {test: s for test, s in stable.items() if test not in failed}
        if not run.ended or run.forged or not failed or not passed:
            return None
        mutated = _with(tree, mutation)
        shown = mutated if self.shows_tests else without_tests(mutated)
        solved = tree if self.shows_tests else without_tests(tree)
        number = hashlib.sha256(repr(mutation).encode()).hexdigest()[:8]
        return SweTask(
            task_id=f"{name}/{number}",
            statement=statement(name, tree, mutation, run, list(failed)),
            tree=digest,
            setup=make_diff(tree, mutated).text,
            gold=make_diff(shown, solved).text,
            fail_to_pass=failed,
            pass_to_pass=passed,
            provable=tuple(sorted(provable & failed.keys())),
            shows_tests=self.shows_tests,
        )


def package_name(tree: FileTree, source: Path) -> str:
    """Return the name and version of a package, or the name of its file."""
    if "PKG-INFO" in tree:
        lines = tree["PKG-INFO"].data.decode(errors="replace").splitlines()
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        if "Name" in fields:
            return f"{fields['Name']}-{fields.get('Version', '0')}"
    return source.name.removesuffix(".tar.gz").removesuffix(".zip").removesuffix(".tar")


def statement(
    name: str, tree: FileTree, mutation: Mutation, run: TestRun, failed: Sequence[str]
) -> str:
    """Return the issue: which tests fail and how, and the code of the first, never the fault."""
    first = failed[0]
    said = run.tests[first].message if first in run.tests else ""
    hidden = tree[mutation.path].data.splitlines()[mutation.line - 1].decode(errors="replace")
    lines = [line for line in said.splitlines() if not _tells(line, mutation.path, hidden)]
    count = "One of its tests fails" if len(failed) == 1 else f"{len(failed)} of its tests fail"
    text = f"A recent change broke {name}. {count} that passed before, among them {first}."
    if lines:
        text += "\n\nIt reports:\n\n" + "\n".join(f"    {line}" for line in lines)
    if code := _code_of(tree, first):
        text += "\n\nThe test:\n\n" + "\n".join(f"    {line}" for line in code.splitlines())
    return text[:_SHOWN_CHARACTERS] + "\n\nFind the fault in the package and repair it."


def _tells(line: str, path: str, hidden: str) -> bool:
    """Whether a line of a message shows the line of the fault."""
    return path in line or (len(hidden.strip()) > 3 and hidden.strip() in line)


def _code_of(tree: FileTree, test: str) -> str:
    """Return the code of a test, empty if it is not found."""
    path, _, rest = test.partition("::")
    wanted = rest.partition("[")[0].split("::")[-1]
    try:
        text = tree[path].data.decode()
        module = ast.parse(text)
    except (KeyError, ValueError, SyntaxError):
        return ""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            return ast.get_source_segment(text, node, padded=True) or ""
    return ""


def _candidates(tree: FileTree, random: Random) -> list[Mutation]:
    """Return all faults of the package, in a random order in which kinds take turns."""
    by_kind: dict[str, list[Mutation]] = {}
    for path in sorted(tree):
        if path.endswith(".py") and not is_protected(path) and not _NO_CODE & {*path.split("/")}:
            for mutation in mutations(path, tree[path].data):
                by_kind.setdefault(mutation.operator, []).append(mutation)
    piles = [random.sample(pile, len(pile)) for _, pile in sorted(by_kind.items())]
    random.shuffle(piles)
    longest = max(map(len, piles), default=0)
    return [pile[place] for place in range(longest) for pile in piles if place < len(pile)]


def _with(tree: FileTree, mutation: Mutation) -> dict[str, TreeFile]:
    file = tree[mutation.path]
    return {**tree, mutation.path: TreeFile(mutation.applied(file.data), file.executable)}


def _holds_tests(path: str) -> bool:
    name = path.rpartition("/")[2]
    named = name.startswith("test") or name.endswith("_test.py")
    return path.endswith(".py") and named and is_test_path(path)


def _passed(run: TestRun) -> list[str]:
    return sorted(name for name, result in run.tests.items() if result.passed)


def _fails(result: TestResult | None) -> bool:
    return result is None or not result.passed
