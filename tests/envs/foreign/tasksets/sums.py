"""A taskset of verifiers: sums, with a tool that adds and counts its calls in the task's state."""

from collections.abc import Iterable

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumState(vf.State):
    """What tool and task share."""

    calls: int = 0


class SumData(vf.TaskData):
    """A problem."""

    numbers: list[int]


class Adder(vf.Toolset[vf.ToolsetConfig, SumState]):
    """Adds."""

    TOOL_PREFIX = None

    async def setup_task(self, task: SumData) -> None:
        self.most = len(task.numbers)

    @vf.tool
    async def add(self, numbers: list[int]) -> str:
        """Add numbers."""
        if len(numbers) > self.most:
            raise ValueError("too many numbers")
        self.state.calls += 1
        return str(sum(numbers))


class SumTask(vf.Task[SumData, SumState, vf.TaskConfig]):
    """Right is the sum; a call of the tool is worth a tenth."""

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["finalized"] = True

    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return trace.state.calls >= 3

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.1)
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.calls)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class SumsConfig(vf.TasksetConfig):
    """Settings."""

    size: int = 4


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    """Sums of two numbers."""

    def load(self) -> Iterable[SumTask]:
        for n in range(self.config.size):
            data = SumData(
                prompt=f"{n}+{n + 1}=", system_prompt="Answer with a number.", numbers=[n, n + 1]
            )
            yield SumTask(data, self.config.task)
