"""The model of a Hugging Face folder, as tests compare it."""

from pathlib import Path

from rollart_flow.models.folder import load_folder
from rollart_flow.models.qwen3 import Qwen3, own_shape


def load_model(folder: Path) -> Qwen3:
    """The model of a folder in float32."""
    config, tensors = load_folder(folder)
    model = Qwen3(own_shape(config, "test"))
    model.load_state_dict(tensors)
    return model
