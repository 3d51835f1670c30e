"""The process of the answer: it loads the answer's code, and does what the judge asks of it.

Code of the answer can change anything here. That is why the judge believes nothing but the data
that comes back. Messages are tuples, in both directions:

    ("load", code)                          (True, names and their values)
    ("get", object, name)                   (True, value)
    ("call", object, name, given, named)    (True, (result, arguments after the call))
    any of them                             (False, (name of a built-in exception, text))
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:  # in a box, the text of `wire` stands before this one
    from typing import Any

    from rollart_flow.rewards.code.wire import Decoder, encode, receive, send

_REQUESTS, _REPLIES = 3, 4
_FUNCTIONS: dict[str, Any] = {
    "__iter__": iter,
    "__next__": next,
    "__len__": len,
    "__str__": str,
    "__repr__": repr,
}


class AnswerServer:
    """The answer's module, and the objects of it that the judge knows."""

    def __init__(self) -> None:
        self._module = type(sys)("solution")
        self._objects: list[Any] = []
        sys.modules["solution"] = self._module

    def serve(self) -> None:
        """Answer the judge until it ends."""
        while True:
            request = Decoder(receive(_REQUESTS), self._objects.__getitem__).value()
            try:
                reply = encode((True, getattr(self, f"_{request[0]}")(*request[1:])), self._refer)
            except Exception as error:  # noqa: BLE001  the answer may raise anything
                text = f"{type(error).__name__}: {error}"[:2000]
                reply = encode((False, (_builtin(type(error)), text)), self._refer)
            send(_REPLIES, reply)

    def _refer(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1

    def _load(self, code: str) -> dict[str, Any]:
        exec(compile(code, "solution.py", "exec", dont_inherit=True), vars(self._module))
        return {name: it for name, it in vars(self._module).items() if not name.startswith("__")}

    def _get(self, target: Any, name: str) -> Any:
        return getattr(target, name)

    def _call(self, target: Any, name: str, given: Any, named: Any) -> Any:
        if name in _FUNCTIONS:
            result = _FUNCTIONS[name](target)
        else:
            result = (target if name == "__call__" else getattr(target, name))(*given, **named)
        changed = [item if isinstance(item, list | dict | set) else None for item in given]
        return result, changed


def _builtin(kind: type[BaseException]) -> str:
    """Return the name of the nearest exception that the judge knows too."""
    names: list[str] = [
        base.__name__ for base in kind.__mro__ if vars(builtins).get(base.__name__) is base
    ]
    return names[0]


if __name__ == "__main__":
    AnswerServer().serve()
