"""One trainer, one module: where weights and optimizer are held, and how ranks share them."""
