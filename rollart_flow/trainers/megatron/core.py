"""The only module that imports Megatron-core, whose warnings at import say nothing about our use.

The invariant: all else of Megatron that this library uses is taken from here.
"""

import os
import warnings

# Where layers are split, Megatron counts on kernels of a GPU being started in order.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
# A step that is trained again has to give the same bits.
os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")

with warnings.catch_warnings():
    for _said in ("Transformer Engine and Apex are not installed", "Apex is not installed"):
        warnings.filterwarnings("ignore", _said, UserWarning)
    for _said in (
        r"`torch\.jit\.script",
        "The following imports from `dynamic_context.py`",
        r"The 'megatron\.core\.transformer\.custom_layers",
    ):
        warnings.filterwarnings("ignore", _said, DeprecationWarning)
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel.mappings import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
    )
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = [
    "GPTModel",
    "ModuleSpec",
    "ProcessGroupCollection",
    "RotaryEmbedding",
    "TransformerConfig",
    "copy_to_tensor_model_parallel_region",
    "gather_from_sequence_parallel_region",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
]
