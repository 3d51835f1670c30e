"""`VisionModel`: a model of transformers with a vision tower, behind the interface of trainers.

The features of images replace the embeddings of their placeholders in observations. A placeholder
that the policy itself sampled is a token like any other, as it is for the engine.
"""

from __future__ import annotations

from typing import Any

import torch

from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.hf.model import TransformersModel
from rollart_flow.models.packing import Packing

PLACES = "mm_token_type_ids"
"""Name of the input that is 1 at the placeholders of images, and 0 elsewhere."""


class VisionModel(TransformersModel):
    """A model whose rows may have images; rows are padded, since positions follow the images."""

    def __init__(self, config: TransformersConfig) -> None:
        super().__init__(config)
        self.packs = False

    def forward(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
        **features: torch.Tensor,
    ) -> torch.Tensor:
        """Return the hidden states, see `LanguageModel.forward`.

        Args: `features` are none, or pixel_values, image_grid_thw and mm_token_type_ids [B, T].
        """
        body: Any = self.causal.base_model
        inputs: dict[str, Any] = {"input_ids": token_ids, "use_cache": False, **features}
        if features:
            sampled = (token_ids == self.config.placeholder) & (features[PLACES] == 0)
            inputs["inputs_embeds"] = body.get_input_embeddings()(token_ids)
            inputs["input_ids"] = token_ids.masked_fill(sampled, 0)
        hidden: torch.Tensor = body(**inputs).last_hidden_state
        return hidden if wanted is None else hidden.flatten(0, 1).index_select(0, wanted)
