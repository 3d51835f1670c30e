"""Installed programs that are agents, each with a scripted policy behind the real gateway."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.registry import AGENTS
from rollart_flow.types import AttemptLimits, Trajectory
from tests.gateway.core.rig import Rig, Script, ScriptedEngine, called

TASK = "Read in.txt, and write its text into out.txt."
PATIENCE_S = 240.0
"""Time after which a program is taken to hang."""


@dataclass(frozen=True)
class Dialect:
    """What a policy says to a program so that it does each thing with its own tools."""

    both: str
    """Reads in.txt and lists the folder, at once."""
    fails: str
    """Calls a tool that fails."""
    empty: str
    """Calls a tool without arguments."""
    writes: str
    """Writes out.txt."""
    ends: str = "I wrote the text into out.txt."

    @property
    def task(self) -> tuple[str, ...]:
        return (self.both, self.fails, self.empty, self.writes, self.ends)


def _shell(tool: str, argument: str, *, empty: str | None = None, ends: str = "") -> Dialect:
    """A program whose tool is a shell."""
    return Dialect(
        both=called((tool, {argument: "cat in.txt"}), (tool, {argument: "ls"}), text="I look. "),
        fails=called((tool, {argument: "cat missing.txt"})),
        empty=called((empty or tool, {})),
        writes=called((tool, {argument: "cat in.txt > out.txt"})),
        ends=ends or Dialect.ends,
    )


def _files(
    read: str, write: str, path: str, listing: tuple[str, Mapping[str, object]], empty: str, at: str
) -> Dialect:
    """A program with tools for files."""
    return Dialect(
        both=called((read, {path: f"{at}in.txt"}), listing, text="I look. "),
        fails=called((read, {path: f"{at}missing.txt"})),
        empty=called((empty, {})),
        writes=called((write, {path: f"{at}out.txt", "content": "seven\n"})),
    )


def _code(code: str) -> str:
    return f"Thought: I go on.\n<code>\nimport pathlib\n{code}\n</code>"


def dialect(name: str, work: str) -> Dialect:
    """How a policy speaks to a program whose folder is `work`."""
    at = f"{work}/"
    ls = {"command": "ls"}
    done = called(("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}))
    known = {
        "claude-code": _files("Read", "Write", "file_path", ("Bash", ls), "CronList", at),
        "codex": _shell("exec_command", "cmd", empty="get_goal"),
        "gemini-cli": _files(
            "read_file", "write_file", "file_path", ("list_directory", {"dir_path": "."}),
            "list_background_processes", "",
        ),
        "qwen-code": _files(
            "read_file", "write_file", "file_path",
            ("run_shell_command", {**ls, "is_background": False}), "list_agents", at,
        ),
        "opencode": _files(
            "read", "write", "filePath", ("bash", {**ls, "description": "List"}), "bash", at
        ),
        "pi": _files("read", "write", "path", ("bash", ls), "bash", ""),
        "mini-swe-agent": _shell("bash", "command", ends=done),
        "openai-agents": _shell("shell", "command"),
        "smolagents": Dialect(
            both=_code("print(pathlib.Path('in.txt').read_text())"),
            fails=_code("print(pathlib.Path('missing.txt').read_text())"),
            empty=_code("print()"),
            writes=_code("pathlib.Path('out.txt').write_text('seven\\n')"),
            ends=_code("final_answer('I wrote the text into out.txt.')"),
        ),
    }  # fmt: skip
    return known[name]


@dataclass
class Workplace:
    """One program at a task, as processes of this machine that know no address but the gateway's.

    Its home lives on from one process to the next, as in a box.
    """

    name: str
    folder: Path
    rig: Rig
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the profile."""
    edits: Mapping[str, str] = field(default_factory=dict)
    """Texts in files of the profile, with what they are replaced by."""
    output: str = ""

    def __post_init__(self) -> None:
        self.work, self.home = self.folder / "work", self.folder / "home"
        self.work.mkdir()
        self.home.mkdir()
        (self.work / "in.txt").write_text("seven\n")

    def launch(self, url: str, key: str, instruction: str = TASK) -> Launch:
        """Write the files of the program, and say how it is started."""
        profile = AGENTS.load(self.name)()
        site = LaunchSite(
            url=url, key=key, model="policy", instruction=instruction, workdir=str(self.work),
            home=str(self.home), programs=str(profile.programs()),
            context_tokens=self.rig.limits.context_tokens,
        )  # fmt: skip
        launch = profile.launch(site)
        for path, text in launch.files.items():
            for old, new in self.edits.items():
                text = text.replace(old, new)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        return launch

    @asynccontextmanager
    async def process(self, launch: Launch) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start the program in a process group of its own, which ends with the block."""
        lost = "http://127.0.0.1:9"  # nothing listens there
        variables = {
            "HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8",
            "HTTP_PROXY": lost, "HTTPS_PROXY": lost, "NO_PROXY": "127.0.0.1,localhost",
        }  # fmt: skip
        with (self.folder / "said").open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *launch.command, cwd=self.work, env={**variables, **launch.variables,
                **self.variables}, stdin=asyncio.subprocess.PIPE, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(launch.stdin.encode())
        process.stdin.close()
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            self.output = (self.folder / "said").read_text(errors="replace")

    async def run(self, url: str, key: str, instruction: str = TASK) -> int:
        """Run the program to its end, and return its exit code."""
        async with self.process(self.launch(url, key, instruction)) as process:
            return await asyncio.wait_for(process.wait(), PATIENCE_S)


def workplace(
    name: str,
    folder: Path,
    *scripts: Script | str,
    context_tokens: int = 1 << 18,
    engine: type[ScriptedEngine] = ScriptedEngine,
    **fields: Any,
) -> Workplace:
    """A program and a policy that says one text after the other; by default what its task takes.

    Nothing of `{work}` in a text stands for anything: `dialect` has the paths.
    """
    texts = scripts or dialect(name, str(folder / "work")).task
    limits = AttemptLimits(context_tokens=context_tokens)
    capture = CaptureLimits(repeats_lost=AGENTS.load(name).repeats_lost)
    rig = Rig(engine(*texts), capture, limits=limits, sampling={"max_tokens": 4000})
    return Workplace(name, folder, rig, **fields)


def begun(exchanges: list[Exchange]) -> list[Exchange]:
    """Calls that went on from no other one, after the first."""
    return [each for each in exchanges[1:] if each.parent is None]


def delivered(rows: list[Trajectory]) -> float:
    """Share of the sampled tokens that are trained on."""
    trained = sum(sum(row.action_mask) for row in rows)
    sampled = sum(version >= 0 for row in rows for version in row.token_versions)
    return trained / sampled


def withheld(rows: list[Trajectory]) -> int:
    """Sampled tokens that are not trained on."""
    return sum(
        version >= 0 and not trained
        for row in rows
        for version, trained in zip(row.token_versions, row.action_mask, strict=True)
    )


@asynccontextmanager
async def gateway(place: Workplace) -> AsyncIterator[tuple[GatewayServer, str, str]]:
    """A server with the session of a program; its address and key."""
    async with GatewayServer(port=0, unix=False) as server:
        key = server.open(place.rig.session)
        assert server.url is not None
        yield server, server.url, key
        server.close(key)


async def played(place: Workplace) -> tuple[int, list[Trajectory]]:
    """Run a program against a gateway; return its exit code and the rows of its session."""
    async with gateway(place) as (_, url, key):
        code = await place.run(url, key)
    return code, await place.rig.trajectories()


class HangUp:
    """A way to a server that hangs up once, when the answer to one request begins.

    Args:
        url: address of the server.
        request: number of the request, from 0.
    """

    def __init__(self, url: str, request: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self._request = request
        self._asked = 0
        self._serving: set[asyncio.Task[None]] = set()
        self.hung_up = False
        """Whether it has hung up."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        cut = False

        async def asks() -> None:
            nonlocal cut
            while piece := await reader.read(1 << 16):
                if piece.startswith(b"POST "):
                    cut = self._asked == self._request
                    self._asked += 1
                back.write(piece)
                await back.drain()

        async def answers() -> None:
            while (piece := await there.read(1 << 16)) and not cut:
                writer.write(piece)
                await writer.drain()
            self.hung_up |= cut

        ways = [asyncio.ensure_future(asks()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, back):
                end.close()
            for end in (writer, back):
                with suppress(ConnectionError):
                    await end.wait_closed()


def with_last_chunk(text: str, waits: asyncio.Event) -> Script:
    """An answer whose last chunk waits for an event."""
    return replace(Script(text), chunks=2, waits=waits)
