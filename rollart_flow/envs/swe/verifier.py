"""Tests of a tree of files, run in a fresh box, with results that only `box_runner` can write.

The box begins with the files alone: no process, cache or repository of an agent. The results are
read after every process in it was killed.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollart_flow.envs.swe.file_tree import FileTree, pack_tar
from rollart_flow.envs.swe.planted_tests import COPIES, LEFT_OUT, PlantedTests, plant
from rollart_flow.envs.swe.pytest_settings import import_roots, pytest_ini
from rollart_flow.envs.swe.runner_folder import RUNNER_PATH, runner_folder
from rollart_flow.errors import EnvironmentFailedError, SandboxFileError
from rollart_flow.sandbox.base import KilledBy, SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box
    from rollart_flow.sandbox.boxes import Boxes

WORKDIR = "/work"
_RESULTS_BYTES = 64 << 20
_SIGNATURE_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of one test, as the runner recorded it."""

    __test__ = False  # pytest collects classes of this name

    outcome: str
    """"passed", "failed" or "skipped"."""
    seconds: float
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.outcome == "passed"


@dataclass(frozen=True, slots=True)
class TestRun:
    """The results of one session."""

    __test__ = False

    tests: Mapping[str, TestResult]
    """Results by the name of the test, such as "tests/test_a.py::test_b"."""
    ended: bool
    """Whether the session ended by itself; False if it exited early or was killed."""
    timed_out: bool = False
    forged: tuple[str, ...] = ()
    """Signs that tested code tried to make results, in words; no result counts then."""
    copies: Mapping[str, bool] = field(default_factory=dict)
    """Whether the planted copy of a test that passed got to its end, by the test."""
    searched: tuple[str, ...] = ()
    """Signs that tested code searched the memory of the process."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Test files that could not be loaded, and why."""


def box_spec(limits: SandboxLimits, packages: tuple[str, ...] = ()) -> SandboxSpec:
    """Return the box that agents of SWE tasks and their verifiers work in.

    Args:
        limits: its bounds.
        packages: installed distributions that it shows beside pytest.
    """
    return SandboxSpec(
        workdir=WORKDIR,
        env={
            "PYTHONPATH": f"{RUNNER_PATH}/site",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        mounts={RUNNER_PATH: str(runner_folder(packages))},
        limits=limits,
    )


def run_tests(
    boxes: "Boxes",
    spec: SandboxSpec,
    tree: FileTree,
    files: Sequence[str],
    timeout_s: float,
    copied: Iterable[str] = (),
    most_copies: int = COPIES,
) -> TestRun:
    """Run the tests of some files in a fresh box, with planted tests among them.

    Where a planted test has not the outcome that it must have, results are forged.

    Args:
        boxes: source of the box.
        spec: of `box_spec`.
        tree: files of the box.
        files: test files of the tree.
        timeout_s: limit of the whole session [s].
        copied: tests of these files, of which some are drawn and copied.
        most_copies: number of tests that are drawn at most.

    Raises:
        EnvironmentFailedError: the runner could not start, which says nothing about the files.
        SandboxError: the box could not be started, or has ended.
    """
    planted = plant(tree, files, copied, most_copies)
    key, results = secrets.token_bytes(32), f"/tmp/results-{secrets.token_hex(8)}"
    box = boxes.open(spec, snapshot=SandboxSnapshot(spec, pack_tar({**tree, **planted.files})))
    try:
        late, said = _session(box, tree, planted.order, key, results, timeout_s)
        try:
            written = box.read(results, max_bytes=_RESULTS_BYTES)
        except SandboxFileError:
            written = b""
    finally:
        box.close()
    records, spoiled = _signed(written, key)
    if not records:
        raise EnvironmentFailedError(f"the test runner did not start: {said}")
    return _run_of(records, spoiled, late, planted)


def _session(
    box: "Box", tree: FileTree, files: Sequence[str], key: bytes, results: str, timeout_s: float
) -> tuple[bool, str]:
    """Run pytest; return whether it took too long, and the last line that it printed."""
    configuration = "/tmp/pytest-of-the-task.ini"
    box.write(configuration, pytest_ini(tree).encode())
    request = {
        "key": key.hex(),
        "results": results,
        "site": f"{RUNNER_PATH}/site",
        "root": WORKDIR,
        "paths": [f"{WORKDIR}/{path}".removesuffix("/.") for path in import_roots(tree)],
        "arguments": [
            "-c", configuration, "--rootdir", WORKDIR, "--confcutdir", WORKDIR,
            "--import-mode=append", "--continue-on-collection-errors", "-p", "no:cacheprovider",
            "-q", "--tb=short", *files,
        ],
    }  # fmt: skip
    command = ["python3", "-I", "-S", "-B", f"{RUNNER_PATH}/box_runner.py"]
    done = box.exec(command, stdin=json.dumps(request).encode(), timeout_s=timeout_s)
    box.kill_all()
    lines = (done.stderr or done.stdout).strip().splitlines()
    return done.killed_by is KilledBy.TIME, lines[-1] if lines else f"exit code {done.exit_code}"


def _signed(written: bytes, key: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the records whose signature and number are right, and the number of other lines."""
    records: list[dict[str, Any]] = []
    spoiled = 0
    for line in written.splitlines():
        signature, text = line[:_SIGNATURE_CHARACTERS], line[_SIGNATURE_CHARACTERS + 1 :]
        right = hmac.new(key, text, hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(signature, right):
            spoiled += 1
            continue
        record = json.loads(text)
        if record["number"] == len(records):
            records.append(record)
        else:
            spoiled += 1
    return records, spoiled


def _run_of(
    records: Sequence[Mapping[str, Any]], spoiled: int, late: bool, planted: PlantedTests
) -> TestRun:
    named = [record for record in records if "test" in record]
    tests: dict[str, TestResult] = {
        record["test"]: TestResult(record["outcome"], record["seconds"], record["message"])
        for record in named
    }
    forged = [f"{name} was replaced" for record in records for name in record.get("replaced", ())]
    if spoiled:
        forged.append(f"{counted(spoiled, 'line')} of results without a signature")
    if len(tests) < len(named):
        forged.append("a test has two results")
    ended = any("ends" in record for record in records)
    wrong, copies = planted.check(tests)
    # A session that was ended early or took too long has not run all of them.
    forged += wrong if ended else [sign for sign in wrong if sign != LEFT_OUT]
    searched = [name for record in records for name in record.get("searched", ())]
    return TestRun(
        planted.without(tests),
        ended,
        late,
        tuple(dict.fromkeys(forged)),
        copies,
        tuple(dict.fromkeys(searched)),
        {r["collect"]: r["message"] for r in records if "collect" in r},
    )
