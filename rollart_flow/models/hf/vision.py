"""`VisionModel`: a model of transformers with a vision tower, behind the interface of trainers.

The features of images replace the embeddings of their placeholders in observations. A placeholder
that the policy itself sampled is a token like any other, as it is for the engine.

Invariant: once `compute_everything` was called, every forward pass uses every parameter, images or
not, so that ranks that share the model exchange the same tensors in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from rollart_flow.models.hf.model import TransformersModel
from rollart_flow.models.hf.shape import TransformersShape
from rollart_flow.models.packing import Packing
from rollart_flow.types import Image

PLACES = "mm_token_type_ids"
"""Name of the input that is 1 at the placeholders of images, and 0 elsewhere."""
_GRID = "image_grid_thw"
"""Input of the families whose positions follow the sizes of images."""
_TOKENS = "input_ids"
_SIDE = 56
"""Height and width of a blank image; those of more pixels are made smaller, others larger."""


class VisionModel(TransformersModel):
    """A model whose rows may have images; rows are padded, since positions follow the images."""

    def __init__(self, config: TransformersShape) -> None:
        super().__init__(config)
        self.packs = False
        self._blank: dict[str, torch.Tensor] | None = None
        """Inputs of a row that has an image alone; None where rows need not have one."""

    def compute_everything(self) -> None:
        processor = self.config.pictures()
        if processor is None:  # no row can have an image
            return
        image = Image.of(np.zeros((_SIDE, _SIDE, 3), np.uint8))
        places = torch.ones((1, processor.tokens(image)), dtype=torch.int64)
        self._blank = {
            **processor.features([image]),
            PLACES: places,
            _TOKENS: places * processor.placeholder,
        }

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
        if self._blank is not None and not features:
            hidden = self._with_blank(token_ids, self._blank)
        else:
            hidden = self._states(token_ids, features)
        return hidden if wanted is None else hidden.flatten(0, 1).index_select(0, wanted)

    def _with_blank(self, token_ids: torch.Tensor, blank: dict[str, torch.Tensor]) -> torch.Tensor:
        """Compute rows without images beside one that has one, whose states are left out."""
        rows, width = token_ids.shape
        there = {name: tensor.to(token_ids.device) for name, tensor in blank.items()}
        longest = max(width, there[PLACES].shape[1])

        def below(above: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
            return torch.cat([pad(each, (0, longest - each.shape[1])) for each in (above, last)])

        every = below(token_ids, there.pop(_TOKENS))
        there[PLACES] = below(torch.zeros_like(token_ids), there[PLACES])
        return self._states(every, there)[:rows, :width]

    def _states(
        self, token_ids: torch.Tensor, features: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the hidden states of all tokens, [B, T, E]."""
        body: Any = self.causal.base_model
        if not features:
            plain: torch.Tensor = body(input_ids=token_ids, use_cache=False).last_hidden_state
            return plain
        if _GRID not in features:
            return self._merged(token_ids, features)
        inputs: dict[str, Any] = {"use_cache": False, **features}
        sampled = (token_ids == self.config.placeholder) & (features[PLACES] == 0)
        inputs["inputs_embeds"] = body.get_input_embeddings()(token_ids)
        inputs["input_ids"] = token_ids.masked_fill(sampled, 0)
        hidden: torch.Tensor = body(**inputs).last_hidden_state
        return hidden

    def _merged(
        self, token_ids: torch.Tensor, features: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the hidden states of a family whose positions are those of the tokens alone."""
        body: Any = self.causal.base_model
        pixels = {name: tensor for name, tensor in features.items() if name != PLACES}
        found: torch.Tensor = body.get_image_features(**pixels).pooler_output
        embedded = body.get_input_embeddings()(token_ids)
        shown = features[PLACES][..., None].bool()
        merged = embedded.masked_scatter(shown, found.to(embedded.dtype))
        hidden: torch.Tensor = body.get_decoder()(
            inputs_embeds=merged, use_cache=False
        ).last_hidden_state
        return hidden
