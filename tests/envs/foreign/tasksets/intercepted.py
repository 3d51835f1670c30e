"""A taskset of verifiers that stops by the requests of its agent, which are not made here."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["InterceptedTaskset"]


class InterceptedTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """Ends once there are many messages."""

    @vf.stop
    async def long(self, request: vf.Request) -> bool:
        return len(request.messages) > 9

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class InterceptedTaskset(vf.Taskset[InterceptedTask, vf.TasksetConfig]):
    """One task."""

    def load(self) -> Iterable[InterceptedTask]:
        yield InterceptedTask(vf.TaskData(prompt="Talk."), self.config.task)
