"""The Megatron-core trainer: layers split over tensor-parallel ranks or cut into pipeline stages,
rows shared by data-parallel ranks.

    capabilities    what of Megatron works on this machine: the one place that says so
    core            the import of Megatron-core
    config          shape of a model -> Megatron's config and layer spec
    mapping         Megatron's tensors <-> Hugging Face's
    experts         mixtures of experts, where every rank has all tokens
    model           the model of one rank
    groups          who splits a layer, who shares rows
    pipeline        Megatron's schedules over the stages
    state           weights, gradients and optimizer of one rank
    distributed     the same in Megatron's own data parallelism and distributed optimizer: on GPUs
    trainer         one rank of the trainer

Nothing is imported here, so that a pipeline that does not train with it does not load it.
"""
