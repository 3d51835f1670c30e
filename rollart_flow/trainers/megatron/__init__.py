"""The Megatron-core trainer: layers split over tensor-parallel ranks, rows over data-parallel ones.

    capabilities    what of Megatron works on this machine: the one place that says so
    core            the import of Megatron-core
    config          shape of a model -> Megatron's config and layer spec
    mapping         Megatron's tensors <-> Hugging Face's
    model           the model of one rank
    groups          who splits a layer, who shares rows
    split           weights, gradients and optimizer of one rank
    trainer         one rank of the trainer

Nothing is imported here, so that a pipeline that does not train with it does not load it.
"""
