"""The Megatron-core trainer, with tensor, pipeline and data parallel ranks.

    capabilities    features of Megatron that work on this machine
    core            the import of Megatron-core
    config          shape of a model -> Megatron's config and layer spec
    mapping         Megatron's tensors <-> Hugging Face's tensors
    experts         mixtures of experts, if every rank has all tokens
    model           the model of one rank
    groups          process groups of the ranks
    pipeline        Megatron's schedules over the pipeline stages
    state           weights, gradients and optimizer of one rank
    distributed     the same in Megatron's own data parallelism and distributed optimizer: on GPUs
    trainer         one rank of the trainer

This module imports nothing, so that other pipelines do not load Megatron.
"""
