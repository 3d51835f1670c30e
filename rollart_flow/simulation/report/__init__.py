"""Figures, bounds, comparisons and pictures of simulated runs."""
