"""Weights that the trainer sends directly from its GPU to vLLM's GPUs without a store: "nccl" and
"ipc"."""
