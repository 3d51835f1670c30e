"""Bubblewrap as a variant of `SANDBOXES`: the default, without root, daemon or images."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from functools import cache

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.agent.cgroup import sweep_groups
from rollart_flow.sandbox.agent.runtime import runtime_folder
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.bubblewrap.command_line import (
    OWN_PATHS,
    box_environ,
    check_folder,
    check_spec,
)
from rollart_flow.sandbox.bubblewrap.exporting import BubblewrapSandbox
from rollart_flow.sandbox.bubblewrap.launch import READY_S, Launched
from rollart_flow.sandbox.bubblewrap.roots import as_nobody, check_root, open_root
from rollart_flow.sandbox.variant import SandboxVariant


class BubblewrapVariant(SandboxVariant):
    """Boxes of the host's own kernel, each in namespaces of its own."""

    def version(self) -> str | None:
        return _version()

    def problem(self) -> str:
        return _problem()

    async def create(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        check_spec(spec)
        check_folder(spec)
        runtime = await asyncio.to_thread(runtime_folder)
        root = await open_root(spec)
        try:
            check_root(spec, root, runtime, OWN_PATHS)
            env = box_environ(spec, root.config.env, host=root.config.host)
            launched, connection = Launched.start(spec, root, runtime)
        except BaseException:
            root.release()
            raise
        box = BubblewrapSandbox(spec, launched, connection, env)
        try:
            await launched.wait_ready(connection)
            if snapshot is not None and snapshot.archive:
                await box.restore(snapshot)
        except BaseException:
            await box.close()
            raise
        return box

    def sweep(self) -> int:
        return sweep_groups()


@cache
def _version() -> str | None:
    if shutil.which("bwrap") is None:
        return None
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("bubblewrap ") or None


@cache
def _problem() -> str:
    """Return why no box can be made here; one is tried, without its contents."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return "it needs Linux"
    for program, package in (("bwrap", "bubblewrap"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            return f"{program} is not installed; install the package {package}"
    tried = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/"]
    if message := _tried([*as_nobody(), *tried, "true"]):
        return f"bwrap may not make namespaces here ({message}); allow user namespaces"
    try:
        runtime_folder()
    except SandboxError as error:
        return str(error)
    return ""


def _tried(command: list[str]) -> str:
    """Run a command; return the last line of its message if it fails, empty if it works."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or ["it fails without a message"])[-1]


VARIANT = BubblewrapVariant()
