"""One training step, independent of where the weights are held."""
