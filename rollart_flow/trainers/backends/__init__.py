"""Trainer backends, one module each: where weights and optimizer lie, and how ranks split them."""
