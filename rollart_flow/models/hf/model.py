"""`TransformersModel`: a causal model of transformers behind the interface of trainers.

The head is the architecture's own: the forward of its causal class runs over given hidden states,
so that scales and soft caps of logits apply as transformers applies them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from rollart_flow.models.hf.attention import NAME
from rollart_flow.models.hf.layout import StoredLayout
from rollart_flow.models.hf.shape import TransformersShape
from rollart_flow.models.language_model import LanguageModel
from rollart_flow.models.packing import Packing

_ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Types of layers whose results depend only on the tokens that the attention lets them see."""
_OWN = "causal."


class TransformersModel(LanguageModel):
    """A model of any architecture that transformers implements."""

    def __init__(self, config: TransformersShape, causal: PreTrainedModel | None = None) -> None:
        """Build the model of a config, or wrap one that is built already."""
        super().__init__()
        self._config = config
        self.causal = _causal_model(config) if causal is None else causal
        self.packs = _takes_packed_rows(self.causal)
        # Kept in a tuple: the head shares modules of `causal`, and is no module of its own.
        self._head = (_head_of(self.causal),)
        self._layout = StoredLayout(self.causal)

    @property
    def config(self) -> TransformersShape:
        return self._config

    def forward(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
        **features: Any,
    ) -> torch.Tensor:
        """Return the hidden states, see `LanguageModel.forward`.

        Args: `features` are further inputs of the architecture under its own names.
        """
        inputs: dict[str, Any] = {"input_ids": token_ids, "use_cache": False, **features}
        if packing is not None:
            inputs |= {"packing": packing, "position_ids": packing.positions[None]}
        hidden: torch.Tensor = self.causal.base_model(**inputs).last_hidden_state
        return hidden if wanted is None else hidden.flatten(0, 1).index_select(0, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, -2)[None]
        found: torch.Tensor = self._head[0](inputs_embeds=flat, use_cache=False).logits
        return found.view(*hidden.shape[:-1], found.shape[-1])

    def blocks(self) -> Sequence[nn.Module]:
        kinds = self.causal._no_split_modules or ()
        found = [each for each in self.causal.modules() if type(each).__name__ in kinds]
        return found or _longest_list(self.causal)

    def names(self, parameter: str) -> tuple[str, ...]:
        return self._layout.names(parameter.removeprefix(_OWN))

    def split(self, parameter: str, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return self._layout.split(parameter.removeprefix(_OWN), tensor)

    def join(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._layout.join(parameter.removeprefix(_OWN), parts)

    def constants(self) -> dict[str, torch.Tensor]:
        return self._layout.constants(self.causal)


class _Given(nn.Module):
    """Stands in for the body of a causal model: its result is its input."""

    def forward(self, *others: object, inputs_embeds: torch.Tensor, **named: object) -> _States:
        return _States(inputs_embeds)


class _States:
    """The output of a model's body, of which only the hidden states are known."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> torch.Tensor:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


def auto_class(config: TransformersShape) -> Any:
    """Return the class of transformers that builds and loads models of this kind."""
    return AutoModelForCausalLM if config.placeholder is None else AutoModelForImageTextToText


def _causal_model(config: TransformersShape) -> PreTrainedModel:
    made = config.checked()
    kind: Any = auto_class(config)
    try:
        model = kind.from_config(made, dtype=torch.float32, attn_implementation=NAME)
    except ValueError:  # the architecture computes attention in its own way
        model = kind.from_config(made, dtype=torch.float32)
    model.eval()  # a policy's probabilities are those without dropout
    return cast("PreTrainedModel", model)


def _takes_packed_rows(model: PreTrainedModel) -> bool:
    made = model.config.get_text_config()
    kinds = set(getattr(made, "layer_types", None) or ())
    return (
        made._attn_implementation == NAME
        and bool(model._supports_attention_backend)
        and kinds <= _ATTENTION
    )


def _head_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with a body that returns given hidden states; the head is shared."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Given()}
    return head


def _longest_list(model: nn.Module) -> Sequence[nn.Module]:
    lists = [[*each] for each in model.modules() if isinstance(each, nn.ModuleList)]
    return max(lists, key=len, default=[])
