"""Weights that the trainer sends from its GPU into vLLM's, past any store: "nccl" and "ipc"."""
