"""A wire that is chat completions at a path of its own."""

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.wires.chat import ChatWire
from rollart_tiny import used


class TinyWire(ChatWire):
    """Notes that an answer took it."""

    name = "tiny"
    answer_path = "/tiny/ask"

    def answer(self, answer: ModelAnswer, call: ModelCall) -> dict[str, object]:
        """Return the JSON of chat completions."""
        used("wire")
        return super().answer(answer, call)


WIRE = TinyWire()
