"""Workers of the tests of resources."""

import os

from rollart_flow.resources import ActorGen


class Shown(ActorGen):
    """Says which devices it may use."""

    def devices(self) -> str:
        """CUDA_VISIBLE_DEVICES of its process."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")
