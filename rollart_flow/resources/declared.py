"""Static types of declared methods: how type checkers see calls between processes.

The decorators of `resources.declarations` leave a method as it is. To a type checker the method is
`Declared`: on an instance, an ordinary method; on the class, the method as other processes call it.
`TypedCluster.call`, `WorkerHandle.call` and `Remote.call` have the type of the worker's class, so
that a call through them is checked against the method's own signature, and a process that calls a
worker need not import the worker's class.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from ray import ObjectRef

P = ParamSpec("P")
B = TypeVar("B", covariant=True)
"""Return type of the method's body: a coroutine if the method is async."""
R = TypeVar("R")
"""Result of one worker."""
C = TypeVar("C", covariant=True)
"""Result of a call on the cluster."""


class RemoteMethod(Protocol[P, R, C]):
    """A declared method as other processes call it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the method and wait for the result."""

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, C]:
        """Call the method from an event loop."""

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]:
        """Start the call on one actor and return a reference to its result. Does not wait."""

    def begin(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[], C]:
        """Start the call where `__call__` would; return a function that waits for its result."""


class Declared(Protocol[P, B, R, C]):
    """A method with a declaration, in the body of its class."""

    def __call__(self, worker: Any, /, *args: P.args, **kwargs: P.kwargs) -> B: ...

    @overload
    def __get__(self, worker: None, owner: type, /) -> RemoteMethod[P, R, C]: ...

    @overload
    def __get__(self, worker: object, owner: type, /) -> Callable[P, B]: ...


class ForEach(Protocol):
    """Decorator of a method whose call returns one result for each worker."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Declared[P, Coroutine[Any, Any, R], R, list[R]]: ...

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], R], /
    ) -> Declared[P, R, R, list[R]]: ...


class ForOne(Protocol):
    """Decorator of a method whose call returns one result of the method's own type."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Declared[P, Coroutine[Any, Any, R], R, R]: ...

    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> Declared[P, R, R, R]: ...


class ForCollected(Protocol):
    """Decorator of a method whose call returns whatever its `collect` function returns."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Declared[P, Coroutine[Any, Any, R], R, Any]: ...

    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> Declared[P, R, R, Any]: ...
