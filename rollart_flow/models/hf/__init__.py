"""Models that transformers computes: any architecture of `AutoModelForCausalLM`."""
