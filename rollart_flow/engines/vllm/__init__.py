"""vLLM as an inference engine: the same code on CPUs and GPUs. Loaded only where it is chosen."""
