"""The child-process side of an isolated environment; the parent side is `envs.process`.

Requests: {"open": {"domain": reference, "settings": reference, "boxes": bool}}, {"reset": [seed,
task]}, {"step": action}, {"close": null}. With "boxes", the parent answers calls of boxes. Answers
are those of the environment, as plain JSON values; that of a reset has the environment's tools too,
or null if it takes text. The file of an image is sent once an episode; later messages name it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollart_flow.control.rollout.env_checks import checked_reset, checked_step
from rollart_flow.control.rollout.observation_checks import checked_tools
from rollart_flow.envs.base import Domain, Environment, close_with_boxes
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.isolation.references import resolve
from rollart_flow.types import Image, Message
from rollart_flow.types.branching import StepObservation, step_observation_json
from rollart_flow.types.messages import message_from_json

if TYPE_CHECKING:
    from rollart_flow.sandbox.box_calls import Ask
    from rollart_flow.sandbox.pool_line import PoolLine


def resolved_domain(how: Mapping[str, Any]) -> Domain:
    """Make the domain that `envs.process.opening` describes; import its modules."""
    make_domain: Any = resolve(how["domain"])
    settings: Any = resolve(how["settings"])
    domain: Domain = make_domain(**settings)
    return domain


class EnvironmentHandler:
    """Holds at most one environment."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._sent: set[str] = set()
        """Images of the episode that earlier answers held."""
        self._shown_now: set[str] = set()
        self._line: PoolLine | None = None

    def connect(self, ask: "Ask") -> None:
        """Learn how to ask the parent."""
        self._ask = ask

    def __call__(self, request: Mapping[str, Any]) -> object:
        calls: dict[str, Callable[[Any], object]] = {
            "open": self._open,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }
        ((name, argument),) = request.items()
        return calls[name](argument)

    def _open(self, how: Mapping[str, Any]) -> None:
        self._environment = resolved_domain(how).make()
        if how["boxes"]:
            from rollart_flow.sandbox.box_calls import CalledBoxes
            from rollart_flow.sandbox.pool_line import PoolLine

            self._line = PoolLine(self._ask)
            self._environment.boxes = CalledBoxes(self._line)

    def _reset(self, argument: tuple[int, str]) -> object:
        environment = self._opened()
        call = f"{type(environment).__name__}.reset"
        answer = checked_reset(environment.reset(*argument), call)
        tools = None
        if environment.converses:
            tools = [tool.as_json() for tool in checked_tools(environment.tools, call)]
        self._sent.clear()
        return self._shown(answer.observation), _jsonable(answer.info), tools

    def _step(self, action: str | Mapping[str, Any]) -> object:
        environment = self._opened()
        call = f"{type(environment).__name__}.step"
        made = action if isinstance(action, str) else message_from_json(action).as_action()
        observation, *values, info = checked_step(environment.step(made), call)
        return [self._shown(observation), *values, _jsonable(info)]

    def _close(self, _: None) -> None:
        environment, self._environment = self._environment, None
        line, self._line = self._line, None
        try:
            if environment is not None:
                close_with_boxes(environment)
        finally:
            if line is not None:
                line.close()

    def _opened(self) -> Environment:
        if self._environment is None:
            raise EnvironmentFailedError("no environment is open in this process")
        return self._environment

    def _shown(self, observation: StepObservation) -> object:
        form = step_observation_json(observation, self._form)
        self._sent |= self._shown_now
        self._shown_now.clear()
        return form

    def _form(self, message: Message) -> dict[str, object]:
        form = message.as_json()
        if message.images:
            form["content"] = [*map(self._part, message.parts)]
        return form

    def _part(self, part: str | Image) -> dict[str, object]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        url = part.url if part.image_id in self._sent else part.data_url
        self._shown_now.add(part.image_id)
        return {"type": "image_url", "image_url": {"url": url}}


def _jsonable(value: object) -> object:
    """Convert NumPy scalars and arrays to numbers and lists, and keys to text."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_jsonable(inner) for inner in value]
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value
