"""The only module that imports Megatron-core, without its irrelevant warnings.

The invariant: other modules import the names of Megatron from this module.
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
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer.optimizer_config import OptimizerConfig, ParamKey
    from megatron.core.optimizer_param_scheduler import ParamGroupOverride
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel.mappings import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
        reduce_from_tensor_model_parallel_region,
    )
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "MoEAllGatherTokenDispatcher",
    "MoELayer",
    "ModuleSpec",
    "OptimizerConfig",
    "P2PCommunicator",
    "ParamGroupOverride",
    "ParamKey",
    "ProcessGroupCollection",
    "RotaryEmbedding",
    "TopKRouter",
    "TransformerConfig",
    "clip_grad_by_total_norm_fp32",
    "copy_to_tensor_model_parallel_region",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_forward_backward_func",
    "get_gpt_decoder_block_spec",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "get_standard_config_overrides",
    "reduce_from_tensor_model_parallel_region",
]
