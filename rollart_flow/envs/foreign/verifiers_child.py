"""The side of `foreign.verifiers` that an interpreter with verifiers 0.4 runs (`isolation.child`).

It needs the standard library and that package. Requests and answers are those of
`envs.child_handler`. The episode is recorded in a trace of verifiers, as its own agents do, so that
rewards, metrics and stops see the conversation that they expect. Tools run in this process.
"""

import asyncio
import inspect
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

_LONGEST_TEXT = 1 << 20
"""Longest answer of a tool [characters]."""


class _NoRuntime:
    """Stands where verifiers passes a runtime, which this adapter does not start."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"the task uses a runtime (its {name}), which this adapter has not")


class VerifiersHandler:
    """Holds at most one episode."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._runner = asyncio.Runner()
        self._taskset: Any = None
        self._loaded: Iterator[Any] = iter(())
        self._tasks: list[Any] = []
        self._episode: _Episode | None = None

    def __call__(self, request: Mapping[str, Any]) -> object:
        calls: dict[str, Callable[[Any], object]] = {
            "open": self._open, "reset": self._reset, "step": self._step, "close": self._close,
        }  # fmt: skip
        ((name, argument),) = request.items()
        return calls[name](argument)

    def _open(self, settings: dict[str, Any]) -> None:
        import verifiers.v1 as vf

        if settings == self._settings:
            return
        place = os.path.expanduser(settings["taskset"])
        name = place
        if os.path.exists(place):
            folder, name = os.path.split(os.path.abspath(place))
            name = name.removesuffix(".py")
            sys.path.insert(0, folder)
        if vf.environment_class(name) is not vf.SingleAgentEnv:
            raise ValueError(
                f"taskset {name!r} has an environment of its own, which runs its own agents; only "
                "tasksets of one agent are taken"
            )
        if vf.default_harness_id(name) == name:
            raise ValueError(f"taskset {name!r} has a harness of its own, which is not run here")
        config = vf.taskset_config_type(name).model_validate({**settings["config"], "id": name})
        self._taskset = vf.load_taskset(config)
        self._loaded, self._tasks = iter(self._taskset), []
        self._settings = settings

    def _reset(self, argument: tuple[int, str]) -> object:
        seed, row = argument
        random.seed(seed)
        self._close(None)
        task = self._task(json.loads(row)["index"])
        self._episode = _Episode(task, type(self._taskset), self._taskset.config)
        shown, tools = self._runner.run(self._episode.begin())
        return shown, {"task": task.key}, tools

    def _step(self, action: Mapping[str, Any] | str) -> object:
        if self._episode is None:
            raise ValueError("step before reset; call reset first")
        message = action if isinstance(action, Mapping) else {"content": action}
        last = self._settings["max_turns"]
        return self._runner.run(self._episode.act(message, last, self._settings["success"]))

    def _close(self, _: None) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._runner.run(episode.end())

    def _task(self, index: int) -> Any:
        while len(self._tasks) <= index:
            try:
                self._tasks.append(next(self._loaded))
            except StopIteration:
                raise ValueError(
                    f"the taskset loads {len(self._tasks)} tasks; there is none at index {index}"
                ) from None
        return self._tasks[index]


class _Episode:
    """A task, its tools, and the trace of what was said."""

    def __init__(self, task: Any, taskset: Any, config: Any) -> None:
        import verifiers.v1 as vf
        from mcp.server.mcpserver import MCPServer
        from verifiers.v1.state import state_cls

        self._task = task
        _check(task)
        self._toolsets = [*task.toolsets(task.config), *taskset.toolsets(config)]
        self._own = len(task.toolsets(task.config))
        self._trace = vf.Trace(
            task=vf.TraceTask(
                type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
            ),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig(max_turns=None)),
        )
        self._servers: dict[str, tuple[Any, str]] = {}
        """Server and name there, of each tool."""
        self._listed: list[Any] = []
        self._said: list[Any] = []
        self._make_server = MCPServer

    async def begin(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the first messages, and the tools in the form of the chat completions API."""
        import verifiers.v1 as vf
        from verifiers.v1.utils.decorators import invoke

        await invoke(self._task.setup, {"trace": self._trace, "runtime": _NoRuntime()})
        tools = await self._started()
        data = self._task.data
        prompt = data.prompt
        if prompt is None:
            raise ValueError("the task has no prompt: its user begins, which is not taken")
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
        if data.system_prompt is not None:
            said.insert(0, vf.SystemMessage(content=data.system_prompt))
        self._said = said
        return [_shown(message) for message in said], tools

    async def act(self, action: Mapping[str, Any], most: int, success: str) -> list[Any]:
        """Return what a step returns, for an action as a message of the assistant."""
        import verifiers.v1 as vf
        from verifiers.v1.graph import prepare_turn

        calls = [
            vf.ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=json.dumps(call["function"]["arguments"]),
            )
            for call in action.get("tool_calls") or ()
        ]
        message = vf.AssistantMessage(
            content=action.get("content") or "",
            reasoning_content=action.get("reasoning_content"),
            tool_calls=calls or None,
        )
        turn = prepare_turn(self._trace, self._said, self._listed)
        reason = "tool_calls" if calls else "stop"
        turn.commit(
            vf.Response(id="", created=0, model="policy", message=message, finish_reason=reason)
        )
        self._said = [*self._said, message]
        results = [await self._called(call) for call in calls]
        self._said += results
        truncated = bool(calls) and self._trace.num_turns >= most
        if calls and not truncated and not await self._stopped():
            return [[_shown(each) for each in results], 0.0, False, False, {}]
        if truncated:
            self._trace.stop("max_turns")
        elif not calls:
            self._trace.stop("agent_completed")
        return await self._scored(truncated, success)

    async def end(self) -> None:
        """Release what the toolsets hold."""
        for toolset in self._toolsets:
            await toolset._exit_stack.aclose()

    async def _scored(self, truncated: bool, success: str) -> list[Any]:
        from verifiers.v1.utils.decorators import invoke

        trace = self._trace
        await invoke(self._task.finalize, {"trace": trace, "runtime": _NoRuntime()})
        await self._task.score(trace, None)
        if missing := [name for name, reward in trace.rewards.items() if reward is None]:
            raise RuntimeError(f"the task gave no reward {', '.join(missing)}")
        rewards = {name: reward.value for name, reward in trace.rewards.items()}
        info: dict[str, Any] = {"rewards": rewards, "metrics": dict(trace.metrics)}
        found: Any = {**trace.metrics, **rewards, **info}
        if success:
            for part in success.split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
            if found is not None:
                info["success"] = found >= 1.0 if isinstance(found, float) else found
        return ["", trace.reward, not truncated, truncated, info]

    async def _stopped(self) -> bool:
        from verifiers.v1.utils.decorators import invoke

        for stop in self._task.hooks("stop"):
            found = invoke(stop, {"trace": self._trace, type(self._trace): self._trace})
            if await found if inspect.isawaitable(found) else found:
                self._trace.stop(stop.__name__)
                return True
        return False

    async def _started(self) -> list[dict[str, Any]]:
        """Start the toolsets in this process, and return their tools."""
        import verifiers.v1 as vf

        tools = []
        for place, toolset in enumerate(self._toolsets):
            name = toolset.server_name
            server = self._make_server(name or type(toolset).__name__)
            self._share_state(toolset)
            await toolset.setup()
            if place < self._own:
                await toolset.setup_task(self._task.data)
            toolset.register(server)
            for tool in await server.list_tools():
                known = f"{name}_{tool.name}" if name else tool.name
                if known in self._servers:
                    raise ValueError(f"two tools are named {known!r}")
                self._servers[known] = (server, tool.name)
                text, schema = tool.description or "", dict(tool.input_schema)
                function = {"name": known, "description": text, "parameters": schema}
                tools.append({"type": "function", "function": function})
                self._listed.append(vf.Tool(name=known, description=text, parameters=schema))
        return tools

    def _share_state(self, toolset: Any) -> None:
        """Let a toolset see the state of the trace, which it would get over a channel."""
        state = self._trace.state
        if not isinstance(state, toolset._state_cls):
            return

        async def pull() -> Any:
            return state

        async def push(before: bytes) -> None:
            """Do nothing: the state is the same object."""

        toolset._pull_state, toolset._push_state = pull, push

    async def _called(self, call: Any) -> Any:
        import verifiers.v1 as vf

        server, name = self._servers.get(call.name, (None, ""))
        if server is None:
            text = f"error: there is no tool {call.name!r}"
        else:
            try:
                found = await server.call_tool(name, json.loads(call.arguments))
                text = "\n".join(getattr(part, "text", "") for part in found.content)
            except Exception as error:  # noqa: BLE001  a tool may raise anything: the policy reads it
                text = f"error: {error}"
        text = text[:_LONGEST_TEXT]
        return vf.ToolMessage(tool_call_id=call.id, content=text, name=call.name)


def _check(task: Any) -> None:
    """Refuse a task that needs what only a run of verifiers has."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.decorators import discover_decorated

    needs = ""
    seen = {kind for stop in task.hooks("stop") for kind in get_type_hints(stop).values()}
    if discover_decorated(task, "intercept") or seen & {vf.Request, vf.Response}:
        needs = "to see each request, by @intercept or a @stop,"
    elif task.NEEDS_CONTAINER:
        needs = "a container"
    elif task.config.judges:
        needs = "a judge, which calls a model"
    for reward in task.hooks("reward"):
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            needs = f"a runtime for its reward {reward.__name__}"
    if needs:
        raise ValueError(f"the task needs {needs}, which this adapter does not offer")


def _shown(message: Any) -> dict[str, Any]:
    """Return a message in the form of the chat completions API, of text only."""
    if message.role == "assistant":
        raise ValueError("the prompt has a message of the assistant, which is not taken")
    content = message.content
    if not isinstance(content, str):
        if any(part.type != "text" for part in content):
            raise ValueError("the task shows an image, which this adapter does not take")
        content = "".join(part.text for part in content)
    shown = {"role": message.role, "content": content}
    if message.role == "tool":
        shown |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return shown
