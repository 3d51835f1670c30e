"""Handles of actors: typed calls in place of names and `Any`.

An actor is a process of Ray, or an object of this process (`resources.local`). Invariant: a call
costs one call of Ray, exactly as through Ray's own handle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from rollart_flow.resources.local import LocalActor, wait
from rollart_flow.resources.placement import Placement

if TYPE_CHECKING:
    import ray

A = TypeVar("A", covariant=True)
P = ParamSpec("P")


class _Call:
    """One method of an actor; see `resources.declared.RemoteMethod`."""

    __slots__ = ("_name", "start")

    def __init__(self, method: Any, name: str) -> None:
        self.start = method.remote
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return wait(self.start(*args, **kwargs), self._name)

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        return await self.start(*args, **kwargs)

    def begin(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return partial(wait, self.start(*args, **kwargs), self._name)


class _Calls:
    """All methods of an actor, as attributes."""

    __slots__ = ("_actor", "_name")

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self._name = name

    def __getattr__(self, name: str) -> _Call:
        return _Call(getattr(self._actor, name), f"{self._name}.{name}")


class _Port(_Calls):
    """All methods of an actor, as async functions."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name).aio


@dataclass(frozen=True, slots=True)
class Remote(Generic[A]):
    """An actor that is the only one of its class; its methods are declared with "rank_zero"."""

    actor: Any
    """Ray's own handle, or a `LocalActor`."""
    name: str = "actor"
    """Name of the actor in the names of waits."""

    @property
    def call(self) -> type[A]:
        """The actor's declared methods: `remote.call.method(...)` waits for the result,
        `remote.call.method.aio(...)` is awaited, and `remote.call.method.start(...)` returns a
        reference to the result.
        """
        return cast("type[A]", _Calls(self.actor, self.name))

    @property
    def port(self) -> A:
        """The actor as an object of its class, of which only the async methods can be called: an
        implementation of every port of the control plane that the class implements.
        """
        return cast("A", _Port(self.actor, self.name))

    def answer(self) -> ray.ObjectRef[Any]:
        """Return a reference that is ready once the actor has started and answers."""
        answer: ray.ObjectRef[Any] = self.actor.__ray_ready__.remote()
        return answer

    def kill(self) -> None:
        """End the actor's process at once; Ray does not restart it."""
        _end(self.actor)


def start_actor(actor_class: Callable[P, A], **options: Any) -> Callable[P, Remote[A]]:
    """Return a function that starts an actor of a class and takes its constructor's arguments.

    Args:
        actor_class: class of the actor.
        options: Ray's options of the actor, such as `num_cpus`.
    """
    import ray

    starter = ray.remote(cast("type[Any]", actor_class)).options(**options)

    def start(*args: P.args, **kwargs: P.kwargs) -> Remote[A]:
        return Remote(starter.remote(*args, **kwargs), actor_class.__name__)

    return start


@dataclass(frozen=True, slots=True)
class WorkerHandle(Generic[A]):
    """One spawned worker of a cluster: its placement and its actor."""

    placement: Placement
    actor: Any
    """Ray's own handle, or a `LocalActor`."""

    @property
    def name(self) -> str:
        """Name of the worker, unique in the run."""
        return self.placement.worker

    @property
    def call(self) -> type[A]:
        """The worker's declared methods: `handle.call.method.start(...)` calls this worker alone,
        whatever the mode, and returns a reference to its result.
        """
        return cast("type[A]", _Calls(self.actor, self.name))

    def kill(self, *, restart: bool = False) -> None:
        """End the worker's process at once, even if it hangs.

        Args:
            restart: let Ray start the worker again, if its cluster allows another restart.
        """
        _end(self.actor, restart=restart)


def _end(actor: Any, *, restart: bool = False) -> None:
    if isinstance(actor, LocalActor):
        actor.end()
        return
    import ray

    ray.kill(actor, no_restart=not restart)
