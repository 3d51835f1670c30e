"""A taskset of verifiers whose reward runs a command, which needs a runtime of verifiers."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["JudgedTaskset"]


class JudgedTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """Right is what runs."""

    @vf.reward
    async def ran(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float((await runtime.run(["true"], {})).exit_code == 0)


class JudgedTaskset(vf.Taskset[JudgedTask, vf.TasksetConfig]):
    """One task."""

    def load(self) -> Iterable[JudgedTask]:
        yield JudgedTask(vf.TaskData(prompt="Write a program."), self.config.task)
