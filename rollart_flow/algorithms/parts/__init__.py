"""Parts of an algorithm that any recipe can use: aggregation, divergence, critic, staleness."""
