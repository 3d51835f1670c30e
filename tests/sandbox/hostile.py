"""Programs that try to break out of a box, or to take more than the box may have.

`run_all` plays each one in a box of its own and returns what was not contained. Run as a module it
prints that as JSON, so that another user than the one who runs the tests can play them too.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import rollart_flow
from rollart_flow.errors import SandboxError, SandboxFileError
from rollart_flow.sandbox.agent.runtime import VERSION, runtime_folder
from rollart_flow.sandbox.base import CommandResult, KilledBy, Sandbox, SandboxLimits, SandboxSpec
from rollart_flow.sandbox.images.digest import ImageConfig
from rollart_flow.sandbox.images.settings import default_cache
from rollart_flow.sandbox.registry import SANDBOXES, create_sandbox

SECRET = "the-secret-of-the-host"
Trial = Callable[[Sandbox], Awaitable[str]]
TRIALS: dict[str, Trial] = {}
LIMITS = SandboxLimits(memory_mb=192, disk_mb=16, processes=24, lifetime_s=60)
_USERS = 1 << 24
"""Identity of a user whom no machine has, to be added to that of a process."""
_KEPT_VARIABLES = ("PATH", "DOCKER_HOST")


def trial(function: Trial) -> Trial:
    """Register a program that returns what it achieved, empty if it was contained."""
    TRIALS[function.__name__.replace("_", "-")] = function
    return function


async def python(
    box: Sandbox, program: str, *arguments: str, timeout_s: float = 20
) -> CommandResult:
    return await box.exec(["python3", "-c", program, *arguments], timeout_s=timeout_s)


def achieved(result: CommandResult) -> str:
    """What a program printed, each line being something it should not have reached."""
    if result.exit_code != 0 and "Traceback" in result.stderr:
        return f"the program itself failed: {result.stderr[-300:]}"
    return result.stdout.strip()


TRY = """
import contextlib, ctypes, errno, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, function):
    try:
        value = function()
    except (OSError, MemoryError):
        return
    if value is not False:
        print(name, value)
"""


@trial
async def network(box: Sandbox) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        name = f"rollart-hostile-{os.getpid()}"
        local.bind("\0" + name)
        local.listen()
        port = server.getsockname()[1]
        program = (
            TRY
            + """
for address in [("127.0.0.1", int(sys.argv[1])), ("1.1.1.1", 53), ("169.254.169.254", 80)]:
    attempt(address, lambda: socket.create_connection(address, 1))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + sys.argv[2]))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
print(*[name for _, name in socket.if_nameindex() if name != "lo"], end="")
"""
        )
        return achieved(await python(box, program, str(port), name))


@trial
async def files_of_the_host(box: Sandbox) -> str:
    with tempfile.NamedTemporaryFile("w", dir="/var/tmp") as secret:
        secret.write(SECRET)
        secret.flush()
        os.chmod(secret.name, 0o644)
        program = (
            TRY
            + """
for path in [sys.argv[1], "/proc/1/root" + sys.argv[1], "/etc/shadow", "/root", "/home", "/var/tmp",
             "/proc/1/cwd/..", "/proc/1/environ", "/sys/kernel", "/run/docker.sock", "/boot"]:
    attempt(path, lambda: os.path.isdir(path) and os.listdir(path) or open(path, "rb").read(99))
for path in ["/usr/bin/x", "/etc/passwd", "/run/rollart/agent.pyc", "/run/rollart/python/x"]:
    attempt("wrote " + path, lambda: open(path, "w"))
attempt("chmod", lambda: os.chmod("/run/rollart/loader", 0o777))
"""
        )
        return achieved(await python(box, program, secret.name))


@trial
async def memory(box: Sandbox) -> str:
    program = "b = []\nwhile True: b.append(bytearray(8 << 20)); print(len(b) * 8, flush=True)"
    result = await python(box, program)
    most = int((result.stdout.split() or ["0"])[-1])
    if most > LIMITS.memory_mb + LIMITS.disk_mb:
        return f"{most} MiB"
    if result.killed_by is not KilledBy.MEMORY and "MemoryError" not in result.stderr:
        return f"ended by something else: {result}"
    return await still_works(box)


@trial
async def memory_that_no_process_owns(box: Sandbox) -> str:
    program = (
        TRY
        + """
held = []
with contextlib.suppress(OSError):
    while True:
        held.append(os.memfd_create("x"))
        os.write(held[-1], bytes(4 << 20))
        print(len(held) * 4, flush=True)
import mmap
with contextlib.suppress(OSError, ValueError):
    while True:
        held.append(mmap.mmap(-1, 4 << 20))
        held[-1][:] = bytes(4 << 20)
        print(len(held) * 4, flush=True)
"""
    )
    result = await python(box, program)
    most = max(map(int, result.stdout.split() or ["0"]))
    return f"{most} MiB" if most > LIMITS.memory_mb + LIMITS.disk_mb else await still_works(box)


@trial
async def forks(box: Sandbox) -> str:
    program = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    running = asyncio.create_task(python(box, program, timeout_s=1))
    most = 0
    try:
        while most < LIMITS.processes // 2 and not running.done():
            most = await box.processes()
        result = await running
    except SandboxError as error:
        await asyncio.gather(running, return_exceptions=True)
        # A busy kernel frees late what forks that failed have taken, and the box pays for it.
        return "" if error.message.endswith("MiB of memory") else error.message
    await box.kill_all()
    if result.killed_by not in (KilledBy.TIME, KilledBy.MEMORY) or most > LIMITS.processes + 8:
        return f"{most} processes, {result}"
    return await still_works(box)


@trial
async def disk(box: Sandbox) -> str:
    program = """
import os
total = 0
for folder in ["/work", "/tmp", "/", "/run", "/etc", "/dev", "/dev/shm", "/dev/mqueue", "/proc"]:
    try:
        with open(folder + "/filler", "wb", 0) as file:
            while total < 1 << 30:
                total += file.write(bytes(1 << 20))
                print(total >> 20, flush=True)
    except OSError:
        pass
"""
    result = await python(box, program)
    total = int((result.stdout.split() or ["0"])[-1])
    if total > 3 * LIMITS.disk_mb:
        return f"{total} MiB on a disk of {LIMITS.disk_mb}"
    try:
        await box.write("more", bytes(2 << 20))
    except SandboxFileError as error:
        return "" if "full" in str(error) else f"refused for another reason: {error}"
    return "" if result.killed_by is KilledBy.MEMORY else "the disk is not full"


@trial
async def proc(box: Sandbox) -> str:
    program = (
        TRY
        + """
mine = os.getpid()
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
             "/proc/1/mem", "/proc/1/oom_score_adj", "/proc/sys/kernel/hostname"]:
    attempt("opened " + path, lambda: open(path, "r+b"))
for path in ["/proc/kcore", "/proc/kmsg", "/proc/1/environ", "/proc/1/maps", "/proc/1/fd/3"]:
    attempt("read " + path, lambda: open(path, "rb").read(16) and None)
others = [pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) not in (1, mine)]
print(*others, end="")
"""
    )
    return achieved(await python(box, program))


@trial
async def links_to_the_host(box: Sandbox) -> str:
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "outside")
        outside.write_text(SECRET)  # noqa: ASYNC240
        await box.exec(f"mkdir out; ln -s {outside} out/link; ln -s {outside} file; mkfifo pipe")
        wrong = []
        for path in ("file", "pipe", "out/link"):
            with contextlib.suppress(SandboxFileError):
                wrong.append(f"read {path}: {await box.read(path)!r}")
        for path in ("out", "file", "pipe"):
            with contextlib.suppress(SandboxFileError):
                await box.download(path, Path(folder, "copy"))
                wrong.append(f"downloaded {path}")
        with contextlib.suppress(SandboxFileError):
            await box.write("file", b"changed")  # follows the link within the box
        unchanged = outside.read_text() == SECRET  # noqa: ASYNC240
        if not unchanged or os.listdir(folder) != ["outside"]:
            wrong.append(f"the host's files changed: {os.listdir(folder)}")
        return "; ".join(wrong)


@trial
async def device_files(box: Sandbox) -> str:
    program = (
        TRY
        + """
import stat
attempt("block", lambda: os.mknod("/work/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))
attempt("character", lambda: os.mknod("/work/mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1)))
for name in ["mem", "kmem", "kmsg", "sda", "vda", "fuse", "kvm", "loop0", "net/tun", "input"]:
    attempt(name, lambda: open("/dev/" + name, "rb"))
"""
    )
    return achieved(await python(box, program))


@trial
async def signals(box: Sandbox) -> str:
    program = (
        TRY
        + """
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    with contextlib.suppress(OSError):
        os.kill(1, number)
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), number)
with contextlib.suppress(OSError):
    os.killpg(0, signal.SIGCONT)
with contextlib.suppress(OSError):
    os.kill(-1, signal.SIGKILL)
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, -20))
"""
    )
    return achieved(await python(box, program)) or await still_works(box)


@trial
async def nested_namespaces(box: Sandbox) -> str:
    program = (
        TRY
        + """
for name, flag in dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000).items():
    if libc.unshare(flag) == 0:
        print(name)
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000):  # clone, with the same flags
    child = libc.syscall(56 if os.uname().machine == "x86_64" else 220, flag | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        print("clone", hex(flag))
arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
child = libc.syscall(435, arguments, ctypes.sizeof(arguments))
if child == 0:
    os._exit(0)
if child > 0:
    print("clone3")
if libc.mount(b"none", b"/work", b"tmpfs", 0, None) == 0:
    print("mount")
if libc.chroot(b"/work") == 0:
    print("chroot")
"""
    )
    return achieved(await python(box, program))


@trial
async def the_agent(box: Sandbox) -> str:
    program = (
        TRY
        + """
if libc.ptrace(16, 1, 0, 0) == 0:
    print("attached")
descriptor = libc.pidfd_open(1, 0) if hasattr(libc, "pidfd_open") else libc.syscall(434, 1, 0)
if descriptor >= 0 and libc.syscall(438, descriptor, 3, 0) >= 0:
    print("stole a descriptor")
if descriptor >= 0:
    os.close(descriptor)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
piece = Piece(ctypes.addressof(buffer), 8)
if libc.process_vm_readv(1, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0) > 0:
    print("read memory")
print(*[number for number in os.listdir("/proc/self/fd") if int(number) > 3], end="")  # 3 lists
"""
    )
    return achieved(await python(box, program)) or await still_works(box)


@trial
async def privileges(box: Sandbox) -> str:
    program = (
        TRY
        + """
wanted = {"NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16, "Seccomp": "2"}
with open("/proc/self/status") as file:
    for line in file:
        name, _, value = line.partition(":")
        if wanted.get(name, value.strip()) != value.strip():
            print(line)
attempt("root", lambda: os.setuid(0))
attempt("groups", lambda: os.setgroups([0]))
if libc.syscall(248, b"user", b"name", b"x", 1, -3) >= 0 and os.uname().machine == "x86_64":
    print("key ring")
"""
    )
    return achieved(await python(box, program))


@trial
async def leftovers(box: Sandbox) -> str:
    marker = f"leftover-{os.getpid()}"
    program = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sleeper = "import time; time.sleep(999)"
        os.execv(sys.executable, [sys.executable, "-c", sleeper, sys.argv[1]])
    os._exit(0)
os.wait()
"""
    await python(box, program, marker)
    for _ in range(1000):
        if await box.processes() == 1 and len(host_processes(marker)) == 1:
            break
        await asyncio.sleep(0.01)  # those that have ended are reaped
    else:
        return f"it does not run: {await box.processes()} in the box"
    await box.close()
    return "it lives" if host_processes(marker) else ""


@trial
async def flight_from_a_timeout(box: Sandbox) -> str:
    program = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        time.sleep(999)
    os.wait()
time.sleep(999)
"""
    await box.exec("sleep 999 & echo left by another command")
    result = await python(box, program, timeout_s=1)
    if result.killed_by is not KilledBy.TIME:
        return f"{result}"
    left = 9
    for _ in range(500):  # the kernel is still ending some
        if (left := await box.processes()) <= 1:
            break
    return "" if left == 1 else f"{left} processes live on"


@trial
async def descriptors(box: Sandbox) -> str:
    program = (
        TRY
        + """
held = []
with contextlib.suppress(OSError):
    while len(held) < 1 << 20:
        held.append(os.open("/dev/null", 0))
print(len(held) if len(held) >= 1 << 20 else "", end="")
with contextlib.suppress(OSError):
    while True:
        held[:2] = []
        for end in os.pipe():
            os.set_blocking(end, False)
        os.write(end, bytes(1 << 16))
"""
    )
    return achieved(await python(box, program)) or await still_works(box)


@trial
async def names_without_end(box: Sandbox) -> str:
    program = (
        TRY
        + """
deep = "d" * 200
with contextlib.suppress(OSError):
    for _ in range(200):
        os.mkdir(deep)
        os.chdir(deep)
        os.symlink("../" * 300, "link")
os.chdir("/work")
open(b"/work/\xff\n\x1b[2J", "w").close()
os.link("/work/" + os.fsdecode(b"\xff\n\x1b[2J"), "/work/hard")
"""
    )
    result = achieved(await python(box, program))
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(SandboxFileError):
            await box.download("/work", Path(folder, "copy"))
        with contextlib.suppress(SandboxFileError):
            await box.snapshot()
    return result or await still_works(box)


@trial
async def archives_that_lead_out(box: Sandbox) -> str:
    program = """
import os
os.makedirs("out/inner")
os.symlink("/etc", "out/absolute")
os.symlink("../..", "out/inner/up")
os.link("/etc/passwd", "out/hard") if os.access("/etc/passwd", os.W_OK) else None
"""
    await python(box, program)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "copy")
        try:
            await box.download("out", target)
        except SandboxFileError:
            return "" if os.listdir(folder) == [] else f"left {os.listdir(folder)}"
        return f"copied {sorted(os.listdir(target))}"


@trial
async def endless_output(box: Sandbox) -> str:
    result = await box.exec("yes & yes >&2", timeout_s=1)
    kept = len(result.stdout) + len(result.stderr)
    if result.killed_by is not KilledBy.TIME or kept > 3 * LIMITS.output_kb << 10:
        return f"{kept} characters kept, {result.killed_by!r}"
    return await still_works(box)


def host_processes(marker: str) -> list[int]:
    """Processes of the host with an argument that equals the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker in path.read_text().split("\0"):
                found.append(int(path.parent.name))
    return found


async def still_works(box: Sandbox) -> str:
    await box.kill_all()
    result = await box.exec("echo works")
    return "" if result.stdout == "works\n" else f"the box broke: {result}"


async def run(name: str, variant: str = "bubblewrap", spec: SandboxSpec | None = None) -> str:
    """Play one program in a box of its own; return what it achieved."""
    box = await create_sandbox(spec or SandboxSpec(limits=LIMITS), variant=variant)
    try:
        return await TRIALS[name](box)
    finally:
        await box.close()


def copy_on_write() -> SandboxSpec:
    """Return the spec of a box over an image, with the host's `/usr`, whose files it may change."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "etc").mkdir()
        Path(folder, "etc", "release").write_text("of the image")
        image = default_cache().add(folder, config=ImageConfig(host=True))
    return SandboxSpec(image=image, writable=True, limits=LIMITS)


async def run_all(variant: str, spec: SandboxSpec) -> dict[str, str]:
    """Play every program; return what those that were not contained achieved."""
    if problem := SANDBOXES.load(variant).problem():
        return {"refused": problem}
    results = {name: await run(name, variant, spec) for name in TRIALS}
    return {name: text for name, text in results.items() if text}


def play_as_another_user(kind: str, variant: str = "bubblewrap") -> dict[str, str]:
    """Play every program in boxes that a user without any rights holds; as `run_all`.

    No other process has this user, so that its limits and its files are those of this call alone.

    Args:
        kind: `plain`, or `copy-on-write` for boxes over an image that they may change.
        variant: the variant of `SANDBOXES`.
    """
    with tempfile.TemporaryDirectory(prefix="rollart-test-", dir="/var/tmp") as folder:
        user = _USERS + os.getpid()
        package, images = Path(rollart_flow.__file__).parent, Path(folder, "images")
        shutil.copytree(
            package, Path(folder, "rollart_flow"), ignore=shutil.ignore_patterns("*.pyc")
        )
        shutil.copytree(Path(__file__).parent, Path(folder, "tests", "sandbox"))
        images.mkdir()
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        os.chown(images, user, user)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        python = str(runtime_folder() / "python" / "bin" / VERSION)
        kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
        done = subprocess.run(
            [*become, python, "-m", "tests.sandbox.hostile", kind, variant],
            env={
                **kept,
                "PYTHONPATH": folder,
                "LD_LIBRARY_PATH": str(runtime_folder() / "lib"),
                "ROLLART_IMAGES": str(images),
            },
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    for left in Path("/var/tmp").glob(f"rollart-*-{user}*"):
        shutil.rmtree(left)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    chosen = copy_on_write() if sys.argv[1] == "copy-on-write" else SandboxSpec(limits=LIMITS)
    json.dump(asyncio.run(run_all(sys.argv[2], chosen)), sys.stdout)
