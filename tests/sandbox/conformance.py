"""What every sandbox does. A variant's test file inherits `SandboxConformance` and names itself."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rollart_flow.errors import SandboxError, SandboxFileError
from rollart_flow.sandbox.base import (
    SOCKET_PATH,
    KilledBy,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
)
from rollart_flow.sandbox.registry import create_sandbox


class SandboxConformance:
    """The tests, each in a box of its own."""

    variant: str
    image: str | None = None

    def play(
        self, test: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec | None = None
    ) -> None:
        """Run a test in a new box, and close it."""

        async def run() -> None:
            async with await self.create(spec) as box:
                await test(box)
            assert not box.alive
            with pytest.raises(SandboxError, match="ended"):
                await box.exec("true")

        asyncio.run(run())

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        return await create_sandbox(spec or SandboxSpec(image=self.image), variant=self.variant)

    def test_commands_have_results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_KEY_OF_THE_HOST", "secret")

        async def test(box: Sandbox) -> None:
            result = await box.exec("echo out; echo error >&2; exit 3")
            assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "error\n")
            assert not result.ok
            assert result.killed_by is KilledBy.NOTHING
            assert result.seconds > 0
            assert result.peak_memory_mb > 0
            assert (await box.exec(["cat"], stdin=b"given")).stdout == "given"
            assert (await box.exec("pwd; echo $MORE", env={"MORE": "x"})).stdout == "/work\nx\n"
            assert (await box.exec(["pwd"], cwd="/tmp")).stdout == "/tmp\n"
            assert "A_KEY_OF_THE_HOST" not in (await box.exec("env")).stdout
            assert (await box.exec("kill -9 $$")).exit_code == -9
            assert (await box.exec(["printf", "a\\377b"])).stdout == "a�b"

        self.play(test)

    def test_a_command_that_cannot_run_has_a_result_too(self) -> None:
        async def test(box: Sandbox) -> None:
            result = await box.exec(["no-such-program", "x"])
            assert result.exit_code == 127
            assert "no-such-program" in result.stderr
            assert (await box.exec(["/etc/passwd"])).exit_code == 126
            assert (await box.exec(["true"], cwd="/missing")).exit_code == 127
            result = await box.exec(["true", "x" * (1 << 18)])
            assert result.exit_code == 126
            assert "file" in result.stderr
            with pytest.raises(ValueError, match="empty"):
                await box.exec([])

        self.play(test)

    def test_commands_run_at_the_same_time_and_a_slow_one_is_killed(self) -> None:
        async def test(box: Sandbox) -> None:
            slow = asyncio.create_task(box.exec("sleep 60 & sleep 60", timeout_s=0.3))
            assert (await box.exec("echo quick")).stdout == "quick\n"
            result = await slow
            assert result.killed_by is KilledBy.TIME
            assert result.exit_code < 0
            while await box.processes():  # the kernel is still ending some
                pass

        self.play(test)

    def test_a_cancelled_command_is_killed(self) -> None:
        async def test(box: Sandbox) -> None:
            running = asyncio.create_task(box.exec("echo > begun; sleep 60"))
            while not (await box.exec("test -e begun")).ok:
                pass
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while await box.processes():
                pass

        self.play(test)

    def test_what_a_command_leaves_in_the_background_lives_until_kill_all(self) -> None:
        async def test(box: Sandbox) -> None:
            assert (await box.exec("sleep 60 & echo begun")).stdout == "begun\n"
            assert await box.processes() == 1
            await box.kill_all()
            while await box.processes():
                pass
            await box.kill_all()
            assert (await box.exec("echo works")).ok

        self.play(test)

    def test_long_output_keeps_its_beginning_and_its_end(self) -> None:
        async def test(box: Sandbox) -> None:
            result = await box.exec("echo first; seq 100000; echo last")
            assert result.stdout.startswith("first\n1\n")
            assert result.stdout.endswith("100000\nlast\n")
            assert "bytes left out" in result.stdout
            assert len(result.stdout) < 5000

        limits = SandboxLimits(output_kb=4)
        self.play(test, SandboxSpec(image=self.image, limits=limits))

    def test_files_are_written_and_read(self) -> None:
        async def test(box: Sandbox) -> None:
            data = bytes(range(256)) * 20000
            await box.write("new/folder/file", data)
            assert await box.read("/work/new/folder/file") == data
            await box.write("new/folder/file", b"short")
            assert await box.read("new/folder/file") == b"short"
            assert (await box.exec("wc -c < new/folder/file")).stdout.strip() == "5"
            for path in ("missing", "new", "/dev/zero"):
                with pytest.raises(SandboxFileError, match=path):
                    await box.read(path)
            with pytest.raises(SandboxFileError, match="more than the 3"):
                await box.read("new/folder/file", max_bytes=3)
            with pytest.raises(SandboxFileError, match="Read-only"):
                await box.write("/usr/file", b"")
            with pytest.raises(SandboxFileError, match="full"):
                await box.write("large", bytes(9 << 20))

        limits = SandboxLimits(disk_mb=8)
        self.play(test, SandboxSpec(image=self.image, limits=limits))

    def test_folders_are_uploaded_and_downloaded(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "inner").mkdir(parents=True)
        (source / "inner" / "script").write_text("echo ran")
        (source / "inner" / "script").chmod(0o755)
        (source / "link").symlink_to("inner/script")

        async def test(box: Sandbox) -> None:
            await box.upload(source, "deep/copy")
            assert (await box.exec("sh deep/copy/link")).stdout == "ran\n"
            await box.upload(source / "inner" / "script", "/tmp/one")
            assert await box.read("/tmp/one") == b"echo ran"
            await box.exec("echo made > deep/copy/made")
            await box.download("deep/copy", tmp_path / "target")
            await box.download("/tmp/one", tmp_path / "one")
            with pytest.raises(FileNotFoundError):
                await box.upload(tmp_path / "missing", "x")
            with pytest.raises(SandboxFileError, match="missing"):
                await box.download("missing", tmp_path / "missing")
            with pytest.raises(SandboxFileError, match="exists"):
                await box.download("deep/copy", tmp_path / "target")

        self.play(test)
        assert (tmp_path / "target" / "made").read_text() == "made\n"
        assert os.readlink(tmp_path / "target" / "link") == "inner/script"
        assert (tmp_path / "one").read_text() == "echo ran"
        assert sorted(os.listdir(tmp_path)) == ["one", "source", "target"]

    def test_a_snapshot_begins_other_boxes(self) -> None:
        async def test(box: Sandbox) -> None:
            await box.exec("mkdir -p a/b; echo one > a/b/file; ln -s a/b/file link; chmod 700 a")
            snapshot = await box.snapshot()
            await box.exec("echo two > a/b/file")
            assert (await box.exec("cat link")).stdout == "two\n"
            for _ in range(2):
                async with await create_sandbox(variant=self.variant, snapshot=snapshot) as other:
                    assert (await other.exec("cat link; stat -c %a a")).stdout == "one\n700\n"
                    await other.exec("rm -r a")

        self.play(test)

    def test_a_box_ends_after_its_lifetime(self) -> None:
        async def test(box: Sandbox) -> None:
            with pytest.raises(SandboxError, match=r"older than 0\.5 s"):
                await box.exec("sleep 60")
            assert not box.alive

        limits = SandboxLimits(lifetime_s=0.5)
        self.play(test, SandboxSpec(image=self.image, limits=limits))

    def test_a_box_sees_what_its_spec_names(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("of the host")
        for folder in (tmp_path, *tmp_path.parents):
            if folder.owner() == "root" and os.geteuid() == 0 and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o055)

        async def test(box: Sandbox) -> None:
            result = await box.exec("cat /data/file; echo $NAME; echo x > /data/file; pwd")
            assert result.stdout == "of the hostvalue\n/elsewhere\n"
            assert "Read-only" in result.stderr
            program = (
                f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({SOCKET_PATH!r})"
            )
            assert (await box.exec(["python3", "-c", program])).ok

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "socket"))
            os.chmod(tmp_path / "socket", 0o666)
            server.listen()
            spec = SandboxSpec(
                image=self.image,
                workdir="/elsewhere",
                env={"NAME": "value"},
                mounts={"/data": str(tmp_path)},
                socket=str(tmp_path / "socket"),
            )
            self.play(test, spec)
