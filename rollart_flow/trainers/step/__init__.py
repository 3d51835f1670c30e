"""One training step, wherever the weights are held."""
