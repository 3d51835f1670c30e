"""vLLM as an inference engine, with the same code on CPUs and GPUs. It is loaded only if it is
selected."""
